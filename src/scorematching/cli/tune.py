"""``scorematching fit --tune``: the same table with several values of some options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from scorematching.cli.options import command_of, say
from scorematching.cluster import Resources, SweepRun, grid, sweep
from scorematching.runs.folder import ABOUT

NOT_TUNED = {"data", "out", "tune", "executor", "gpus", "overwrite", "data_dir", "device", "family"}
"""Parameters of ``fit`` that are the same for all fits, or not passed on."""


def tune_fit(
    context: typer.Context, out: Path, tune: Sequence[str], executor: str, gpus: float
) -> None:
    """Fit with every combination of values; each fit has a folder in ``out``.

    Args:
        context: of the command ``fit``, whose other options are those of every fit.
        out: folder of all fits.
        tune: ``name=value,value`` for each option that varies.
        executor: "local", one after the other, or "ray".
        gpus: of each fit on a Ray cluster.
    """
    settings = grid(_read(context, tune))
    words = command_of(context, without={"out", "tune", "executor", "gpus", *settings[0]})[2:]
    words[0] = str(Path(words[0]).resolve()) if Path(words[0]).is_file() else words[0]
    place = out.resolve()
    tasks = [
        {
            **chosen,
            "command": [*words, *_options(chosen)],
            "folder": str(place / f"{i:04d}" / "fit"),
        }
        for i, chosen in enumerate(settings)
    ]
    runs = sweep(run_fit, tasks, place, executor, Resources(gpus=gpus))
    say(*_table(runs, list(settings[0])))
    if all(run.error for run in runs):
        raise RuntimeError(f"all {len(runs)} fits failed, the first with: {runs[0].error}")


def run_fit(settings: dict[str, Any]) -> dict[str, Any]:
    """Fit in a process of its own; returns the held-out numbers of the model.

    Raises:
        RuntimeError: if the command fails, with what it said.
    """
    folder, module = Path(settings["folder"]), [sys.executable, "-m", "scorematching", "fit"]
    # A fit is one process, even where this one is among several.
    alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [*module, *settings["command"], "--out", str(folder), "--overwrite"],
        capture_output=True,
        text=True,
        check=False,
        env=alone,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    first = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["held_out"]["methods"][0]
    return {name: first[name] for name in ("log_likelihood", "loss")}


def _read(context: typer.Context, tune: Sequence[str]) -> dict[str, list[str]]:
    """Values of every option that varies.

    Raises:
        ValueError: if something is no option of ``fit``, or has no values.
    """
    known = {str(p.name): p for p in context.command.params if p.name not in NOT_TUNED}
    found: dict[str, list[str]] = {}
    for pair in tune:
        name, _, values = pair.partition("=")
        key = name.strip().replace("-", "_")
        if key not in known or not values.strip():
            names = ", ".join(name.replace("_", "-") for name in known)
            raise ValueError(
                f"--tune must be followed by name=value,value with a name among {names}, got "
                f"{pair!r}; try --tune model=mlp,dkef"
            )
        found[key] = [value.strip() for value in values.split(",")]
    return found


def _options(chosen: dict[str, Any]) -> list[str]:
    """Options of a command line."""
    return [word for name, v in chosen.items() for word in (f"--{name.replace('_', '-')}", str(v))]


def _table(runs: Sequence[SweepRun], names: Sequence[str]) -> list[str]:
    """The fits with their held-out numbers, the least loss first."""

    def loss(run: SweepRun) -> float:
        return float((run.metrics.get("loss") or {}).get("mean") or float("inf"))

    lines = []
    for run in sorted(runs, key=loss):
        chosen = " ".join(f"{name}={run.settings[name]}" for name in names)
        numbers = [_number(name, run.metrics.get(name)) for name in ("loss", "log_likelihood")]
        outcome = f"failed: {run.error}" if run.error else ", ".join(n for n in numbers if n)
        lines.append(f"{chosen}: {outcome} ({run.settings['folder']})")
    note = "held-out rows chose the first one, so its numbers are a little too good"
    return [*lines, *([note] if len(runs) > 1 else [])]


def _number(name: str, estimate: Any) -> str:
    if not estimate or estimate["mean"] is None:
        return ""
    error = estimate["standard_error"]
    return f"{name.replace('_', '-')} {estimate['mean']:.4g} +- {error or 0:.2g}"

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
from scorematching.cluster.sweeps import RUN
from scorematching.runs.folder import ABOUT
from scorematching.tables.sample import sha256_of

NOT_TUNED = {
    *("data", "out", "tune", "executor", "gpus", "overwrite", "data_dir", "device", "family"),
    *("columns", "drop_missing", "dequantise"),
}
"""Parameters of ``fit`` that are the same for all fits, or not passed on. The last three change the
table, and losses of different tables cannot be compared."""

OTHER_ROWS = {"seed", "max_rows", "max_memory"}
"""Parameters with which other rows are held out."""

SOME_FAILED = 3
"""The exit status if some fits have failed, and others have not."""


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

    Raises:
        RuntimeError: if all fits fail.
        typer.Exit: with `SOME_FAILED`, if some do.
        ValueError: if an option cannot vary, or the folder holds fits of another table.
    """
    given = context.params
    if given.get("family"):
        raise ValueError(
            f"--tune must be without --family, got --family {given['family']}; a family is fitted "
            "to all rows, so that none are left to compare fits at"
        )
    settings = grid(_read(context, tune))
    place = out.expanduser().resolve()
    tasks = _tasks(context, settings, place)
    _check_results(place, tasks, bool(given.get("overwrite")))
    runs = sweep(run_fit, tasks, place, executor, Resources(gpus=gpus))
    say(*_table(runs, list(settings[0])))
    _finish(runs)


def _tasks(
    context: typer.Context, settings: Sequence[dict[str, Any]], place: Path
) -> list[dict[str, Any]]:
    """What each fit is called with."""
    left_out = {"out", "tune", "executor", "gpus", "overwrite", *settings[0]}
    data, *words = command_of(context, without=left_out)[2:]
    path = Path(data).expanduser()
    source, table = (str(path.resolve()), sha256_of(path)) if path.is_file() else (data, "")
    return [
        {
            **chosen,
            "table": table,
            "command": [source, *words, *_options(chosen)],
            "folder": str(place / f"{i:04d}" / "fit"),
        }
        for i, chosen in enumerate(settings)
    ]


def _check_results(place: Path, tasks: Sequence[dict[str, Any]], overwrite: bool) -> None:
    """Refuse results of another table, which would be shown as those of this one; or remove all."""
    for i, task in enumerate(tasks):
        path = place / f"{i:04d}" / RUN
        if overwrite:
            path.unlink(missing_ok=True)
        elif path.is_file() and _table_of(path) != task["table"]:
            raise ValueError(
                f"{path} was fitted to another table, or by another version; pass --overwrite to "
                "fit again, or another folder to --out"
            )


def _table_of(path: Path) -> Any:
    """The checksum of the table that an earlier fit had; None where its file does not say."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["settings"]["table"]
    except (ValueError, KeyError, TypeError):
        return None


def _finish(runs: Sequence[SweepRun]) -> None:
    """Say how many fits failed; the exit status tells all from some."""
    errors = [run.error for run in runs if run.error]
    if len(errors) == len(runs):
        raise RuntimeError(f"all {len(runs)} fits failed, the first with: {errors[0]}")
    if errors:
        print(
            f"scorematching: {len(errors)} of {len(runs)} fits failed, the first with: "
            f"{errors[0]}; the same command repeats them alone",
            file=sys.stderr,
        )
        raise typer.Exit(SOME_FAILED)


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
        errors="backslashreplace",  # file names may be in another encoding
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
        mean = (run.metrics.get("loss") or {}).get("mean")
        return float("inf") if mean is None else float(mean)

    lines = []
    for run in sorted(runs, key=loss):
        chosen = " ".join(f"{name}={run.settings[name]}" for name in names)
        numbers = [_number(name, run.metrics.get(name)) for name in ("loss", "log_likelihood")]
        outcome = f"failed: {run.error}" if run.error else ", ".join(n for n in numbers if n)
        lines.append(f"{chosen}: {outcome} ({run.settings['folder']})")
    return [*lines, *_notes(runs, names)]


def _notes(runs: Sequence[SweepRun], names: Sequence[str]) -> list[str]:
    """What has to be known of a comparison."""
    if sum(run.error is None for run in runs) < 2:
        return []
    notes = ["held-out rows chose the first one, so its numbers are a little too good"]
    if others := [name.replace("_", "-") for name in names if name in OTHER_ROWS]:
        notes.append(f"fits that differ in {', '.join(others)} have other rows held out")
    return notes


def _number(name: str, estimate: Any) -> str:
    if not estimate or estimate["mean"] is None:
        return ""
    error = estimate["standard_error"]
    return f"{name.replace('_', '-')} {estimate['mean']:.4g} +- {error or 0:.2g}"

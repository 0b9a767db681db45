"""Time, memory and noise of score-matching losses, ours and others, in one process.

Example:
    python -m benchmarks.objectives --threads 1 --rounds 20 --compiled
    python -m benchmarks.objectives --device cuda --compiled
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import scorematching as sm
from benchmarks.harness.provenance import commit, device_name, now
from benchmarks.harness.timing import Step, interleaved, peak_bytes
from benchmarks.objectives import contenders, noise, steps, verdict
from benchmarks.objectives.contenders import Contender
from benchmarks.objectives.models import CASES, QUICK_CASES, Case

NUMS = (1, 4, 5, 16)
"""Directions per point; 5 is torchebm's default."""

Row = dict[str, Any]


SCRIPT = "python -m benchmarks.objectives"
RESULTS = Path("benchmarks/results")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark, print and write what it found.

    Args:
        arguments: the command line; None is that of the process.

    Returns:
        What is written: the setting, all rows and the verdict.
    """
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    torch.set_num_threads(options.threads)
    peers, skipped = contenders.load_peers(options.peers and options.device == "cpu")
    for name, reason in skipped.items():
        print(f"{name} is skipped: {reason}")
    document = describe(given, options, skipped)
    torch.manual_seed(options.seed)
    document |= on_gpu(options) if options.device == "cuda" else on_cpu(options, peers)
    document["verdict"] = verdict.verdicts(document)
    print(verdict.as_text(document["verdict"]))
    write(document, options.output or RESULTS / f"{document['kind']}.json")
    return document


def parser() -> argparse.ArgumentParser:
    """The command line."""
    names = [case.name for case in CASES]
    made = argparse.ArgumentParser(
        prog=SCRIPT,
        description=(__doc__ or "").split("\n")[0],
        epilog=f"example: {SCRIPT} --threads 1 --rounds 20 --compiled",
    )
    made.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    made.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    made.add_argument("--rounds", type=int, help="interleaved rounds (40; 3 with --quick)")
    made.add_argument("--models", nargs="+", choices=names, default=names, help="which models")
    made.add_argument("--compiled", action="store_true", help="also time compiled steps")
    made.add_argument("--no-peers", dest="peers", action="store_false", help="ours alone")
    made.add_argument(
        "--no-memory", dest="memory", action="store_false", help="leave peak memory out: quicker"
    )
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--output", type=Path, help="JSON file (benchmarks/results/DEVICE.json)")
    return made


def on_cpu(options: argparse.Namespace, peers: dict[str, Any]) -> dict[str, Any]:
    """All that is timed on a CPU."""
    cases = [c for c in (QUICK_CASES if options.quick else CASES) if c.name in options.models]
    rounds = options.rounds or (3 if options.quick else 40)
    rows: list[Row] = []
    for case in cases:
        rows += show(sliced_rows(case, peers, rounds, options))
    for case in cases:
        if case.exact:
            rows += show(exact_rows(case, peers, options))
    if options.compiled:
        networks = [case for case in cases if case.name.startswith("mlp")]
        rows += show(steps.compiled(networks, peers, 3 * rounds, options.seed))
    repeats = 4 if options.quick else 200
    variances = noise.measure(peers, repeats, rounds, "cpu", options.seed, options.quick)
    return {"rows": rows, "variance": variances}


def on_gpu(options: argparse.Namespace) -> dict[str, Any]:
    """All that is timed on a GPU."""
    rounds = options.rounds or (3 if options.quick else 40)
    rows = steps.paper_flow(rounds, options.seed, options.quick, options.compiled)
    return {"rows": show(rows), "variance": []}


def sliced_rows(
    case: Case, peers: dict[str, Any], rounds: int, options: argparse.Namespace
) -> list[Row]:
    """Denoising and sliced losses of everyone, on one model."""
    model, x = case.make(options.seed, "cpu")
    field = sm.VectorField(model) if case.vector else model
    found = [*contenders.ours(field, x, NUMS), *contenders.bare(model, x, NUMS, case.vector)]
    # The peers take log-densities only.
    if "torchebm" in peers and not case.vector:
        found += contenders.torchebm(peers["torchebm"], model, x, NUMS)
    if "ebmkit" in peers and not case.vector:
        found += contenders.ebmkit(peers["ebmkit"], model, x, NUMS)
    return with_ratios(timed(case, case.batch, found, model, case.more * rounds, 3, options))


def exact_rows(case: Case, peers: dict[str, Any], options: argparse.Namespace) -> list[Row]:
    """Exact losses of everyone, which take seconds: few rounds."""
    model, x = case.make(options.seed, "cpu")
    found = list(contenders.exact(peers, model, x[: case.exact]))
    return with_ratios(timed(case, case.exact, found, model, 3, 0, options))


def timed(
    case: Case,
    batch: int,
    found: list[Contender],
    model: nn.Module,
    rounds: int,
    warmup: int,
    options: argparse.Namespace,
) -> list[Row]:
    """Memory and interleaved times of all contenders on one model."""
    made = [gradient_step(contender, model) for contender in found]
    memory: list[int | None] = [None] * len(made)
    if options.memory:
        memory = [_peak(step, model) for step in made]
    times = interleaved(made, rounds, warmup, "cpu", options.seed)
    return [
        {
            "suite": "objectives",
            "model": case.name,
            "about": case.about,
            "batch": batch,
            "library": contender.library,
            "objective": contender.objective,
            "law": contender.law,
            "num": contender.num,
            "mode": "eager",
            "seconds": seconds,
            "peak_bytes": peak,
        }
        for contender, seconds, peak in zip(found, times, memory)
    ]


def gradient_step(contender: Contender, model: nn.Module) -> Step:
    """What is timed: zero gradients, mean loss, backward."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        contender.loss().backward()

    return step


def _peak(step: Step, model: nn.Module) -> int:
    model.zero_grad(set_to_none=True)  # or the step would begin by giving memory back
    return peak_bytes(step, "cpu")


def with_ratios(rows: list[Row]) -> list[Row]:
    """Add times relative to bare DSM, and to the peers at the same M."""
    for row in rows:
        for name, library, objective, num in (
            ("ratio_dsm", "bare", "DSM", 0),
            ("ratio_torchebm", "torchebm", None, row["num"]),
            ("ratio_ebmkit", "ebmkit", None, row["num"]),
            ("ratio_bare", "bare", row["objective"], row["num"]),
        ):
            unit = [
                other["seconds"]["median"]
                for other in rows
                if (other["library"], other["num"]) == (library, num)
                and objective in (None, other["objective"])
            ]
            comparable = unit and not (objective is None and row["objective"] == "DSM")
            row[name] = row["seconds"]["median"] / unit[0] if comparable else None
    return rows


def describe(
    arguments: list[str], options: argparse.Namespace, skipped: dict[str, str]
) -> dict[str, Any]:
    """Where, when and with what the numbers were made."""
    return {
        "command": shlex.join([*SCRIPT.split(), *_portable(arguments)]),
        "date": now(),
        "commit": commit(),
        "seed": options.seed,
        "quick": options.quick,
        "threads": options.threads,
        "device": device_name(options.device),
        "kind": options.device,
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": contenders.versions(),
        "skipped": skipped,
        "step": "zero gradients, mean loss, backward; float32; interleaved turns of two steps, "
        "the second timed; quieter half of the rounds",
    }


def _portable(arguments: list[str]) -> list[str]:
    """A command line without the place on this machine where its output went."""
    pairs = zip(arguments, ["", *arguments])
    return [a for a, before in pairs if "--output" not in (a.split("=")[0], before)]


def show(rows: list[Row]) -> list[Row]:
    """Print rows as they come."""
    for row in rows:
        what = f"{row['library']} {row['objective']} M={row['num']} {row.get('law', '')}"
        head = f"{row['model']:10s} {row['mode']:9s} {what:32s}"
        if row["seconds"] is None:
            print(f"{head} {row['error']}")
            continue
        times = [1e3 * row["seconds"][key] for key in ("median", "q25", "q75")]
        peak = f"{row['peak_bytes'] / 1e6:9.1f} MB" if row["peak_bytes"] is not None else ""
        print(f"{head} {times[0]:10.2f} ms [{times[1]:.2f}, {times[2]:.2f}] {peak}", flush=True)
    return rows


def write(document: dict[str, Any], path: Path) -> None:
    """The document as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {path}")

"""Time, memory and noise of score-matching losses of this library and of others, in one process.

Example:
    python -m benchmarks.objectives --threads 1 --rounds 20 --compiled --no-memory
    python -m benchmarks.objectives --device cuda --compiled
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import scorematching as sm
from benchmarks.harness.command import Output, Threads, command_line
from benchmarks.harness.provenance import stamp
from benchmarks.harness.timing import Step, interleaved, peak_bytes
from benchmarks.objectives import contenders, noise, steps, targets
from benchmarks.objectives.contenders import Contender, gradient_step
from benchmarks.objectives.models import CASES, QUICK_CASES, Case

NUMS = (1, 4, 5, 16)
"""Directions per point; 5 is torchebm's default."""

PROGRAM = "python -m benchmarks.objectives"
RESULTS = Path("benchmarks/results")

STEP = (
    "zero gradients, mean loss, backward; float32; interleaved turns of two steps, the second "
    "timed; quieter half of the rounds"
)

Row = dict[str, Any]

Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see that it runs.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Interleaved rounds [40; 3 with --quick].")]
Models = Annotated[
    list[str] | None,
    typer.Option(help=f"Of {', '.join(case.name for case in CASES)}; repeatable [all]."),
]
Compiled = Annotated[bool, typer.Option("--compiled", help="Time compiled steps, too.")]
Peers = Annotated[bool, typer.Option("--peers/--no-peers", help="Time other libraries, too.")]
Memory = Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory, too.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of models, data and directions.")]


@dataclass(frozen=True)
class Options:
    """How to measure; see `measure`."""

    quick: bool
    rounds: int
    cases: Sequence[Case]
    compiled: bool
    memory: bool
    seed: int


def measure(
    quick: Quick = False,
    threads: Threads = 1,
    rounds: Rounds = None,
    models: Models = None,
    compiled: Compiled = False,
    peers: Peers = True,
    memory: Memory = True,
    device: Device = "cpu",
    seed: Seed = 0,
    output: Output = None,
) -> dict[str, Any]:
    """Time score-matching losses of this library and of others; print and write the results."""
    command = command_line(PROGRAM, measure, locals())
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", got {device!r}')
    rounds = rounds or (3 if quick else 40)
    options = Options(quick, rounds, _cases(quick, models), compiled, memory, seed)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    modules, skipped = contenders.load_peers(peers and device == "cpu")
    for name, reason in skipped.items():
        print(f"{name} is skipped: {reason}")
    document = {
        **stamp(command, device, ("torch", "numpy", *contenders.PEERS, "scorematching")),
        "seed": seed,
        "quick": quick,
        "kind": device,
        "load_average": os.getloadavg()[0],
        "skipped": skipped,
        "step": STEP,
    }
    document |= on_gpu(options) if device == "cuda" else on_cpu(options, modules)
    document["verdict"] = targets.compare(document)
    print(targets.as_text(document["verdict"]))
    write(document, output or RESULTS / f"{device}.json")
    return document


def _cases(quick: bool, names: list[str] | None) -> list[Case]:
    known = {case.name: case for case in (QUICK_CASES if quick else CASES)}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"models must be among {', '.join(known)}, got {unknown[0]!r}")
    return [case for name, case in known.items() if not names or name in names]


def on_cpu(options: Options, peers: dict[str, Any]) -> dict[str, Any]:
    """All measurements on a CPU."""
    rows: list[Row] = []
    for case in options.cases:
        rows += show(sliced_rows(case, peers, options))
    for case in options.cases:
        if case.exact:
            rows += show(exact_rows(case, peers, options))
    if options.compiled:
        networks = [case for case in options.cases if case.name.startswith("mlp")]
        rows += show(steps.compiled(networks, peers, 3 * options.rounds, options.seed))
    repeats = 4 if options.quick else 200
    variances = noise.measure(peers, repeats, options.rounds, "cpu", options.seed, options.quick)
    return {"rows": rows, "variance": variances}


def on_gpu(options: Options) -> dict[str, Any]:
    """All measurements on a GPU."""
    rows = steps.paper_flow(options.rounds, options.seed, options.quick, options.compiled)
    return {"rows": show(rows), "variance": []}


def sliced_rows(case: Case, peers: dict[str, Any], options: Options) -> list[Row]:
    """Denoising and sliced losses of all libraries, on one model."""
    model, x = case.make(options.seed, "cpu")
    field = sm.VectorField(model) if case.vector else model
    found = [*contenders.ours(field, x, NUMS), *contenders.bare(model, x, NUMS, case.vector)]
    # The other libraries take log-densities only.
    if "torchebm" in peers and not case.vector:
        found += contenders.torchebm(peers["torchebm"], model, x, NUMS)
    if "ebmkit" in peers and not case.vector:
        found += contenders.ebmkit(peers["ebmkit"], model, x, NUMS)
    rounds = case.more * options.rounds
    return with_ratios(timed(case, case.batch, found, model, rounds, 3, options))


def exact_rows(case: Case, peers: dict[str, Any], options: Options) -> list[Row]:
    """Exact losses of all libraries; they take seconds, so there are few rounds."""
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
    options: Options,
) -> list[Row]:
    """Memory and interleaved times of all contenders on one model."""
    made = [gradient_step(contender, model) for contender in found]
    memory = [_peak(step, model) if options.memory else None for step in made]
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


def _peak(step: Step, model: nn.Module) -> int:
    model.zero_grad(set_to_none=True)  # otherwise the step would first free memory
    return peak_bytes(step, "cpu")


def with_ratios(rows: list[Row]) -> list[Row]:
    """Add times relative to hand-written DSM, and to other libraries at the same M."""
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


def show(rows: list[Row]) -> list[Row]:
    """Print a line for every row, while the benchmark runs; returns the rows."""
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
    """Write the document as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {path}")

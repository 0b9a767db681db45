"""Time and memory of score matching on networks of diffusers and transformers.

Example:
    python -m benchmarks.networks --threads 1 --rounds 10
    python -m benchmarks.networks --device cuda --captured
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor, nn

from benchmarks.harness.command import Output, Threads, command_line
from benchmarks.harness.provenance import stamp
from benchmarks.harness.timing import Step, interleaved, peak_bytes
from benchmarks.harness.torchvision import declare_operators
from benchmarks.networks.agreement import agreement
from benchmarks.networks.losses import NUMS, Contender, contenders, field_of
from benchmarks.networks.models import ABOUT, CASES, Case, described
from scorematching.capture import CapturedStep

PROGRAM = "python -m benchmarks.networks"
RESULTS = Path("benchmarks/results")
PACKAGES = ("torch", "numpy", "diffusers", "transformers", "scorematching")

Row = dict[str, Any]

Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see that it runs.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Interleaved rounds [10; 2 with --quick].")]
Networks = Annotated[
    list[str] | None, typer.Option(help=f"Of {', '.join(ABOUT)}; repeatable [all].")
]
Sizes = Annotated[list[str] | None, typer.Option(help="small or large; repeatable [both].")]
Captured = Annotated[
    bool, typer.Option("--captured", help="Whole steps as CUDA graphs, instead of eager ones.")
]
Check = Annotated[
    bool, typer.Option("--check/--no-check", help="First compare gradients with differences.")
]
Memory = Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory, too.")]
ProcessorTime = Annotated[
    bool,
    typer.Option("--processor-time", help="On a busy CPU: time without that of other processes."),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of networks, data and directions.")]


class Options(NamedTuple):
    """How to measure; see `measure`."""

    rounds: int
    captured: bool
    memory: bool
    processor_time: bool
    device: str
    seed: int


def measure(
    quick: Quick = False,
    threads: Threads = 1,
    rounds: Rounds = None,
    networks: Networks = None,
    sizes: Sizes = None,
    captured: Captured = False,
    check: Check = True,
    memory: Memory = True,
    processor_time: ProcessorTime = False,
    device: Device = "cpu",
    seed: Seed = 0,
    output: Output = None,
) -> dict[str, Any]:
    """Time sliced score matching on third-party networks; print and write the results."""
    command = command_line(PROGRAM, measure, locals())
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", got {device!r}')
    rounds = rounds or (2 if quick else 10)
    options = Options(rounds, captured, memory, processor_time, device, seed)
    cases = _chosen("quick" if quick else device, networks, sizes)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    declared = declare_operators()  # kept until the end
    found, skipped = _available(cases, seed)
    document: dict[str, Any] = {
        **stamp(command, device, PACKAGES),
        "seed": seed,
        "quick": quick,
        "kind": device,
        "load_average": os.getloadavg()[0],
        "clock": "processor" if processor_time else "wall",
        "skipped": skipped,
        "agreement": compared({case.name for case in found}, options) if check else [],
        "rows": [],
    }
    output = output or RESULTS / f"networks-{'gpu' if device == 'cuda' else 'cpu'}.json"
    for case in found:
        try:
            document["rows"] += show(timed(case, options))
        except RuntimeError as error:  # such as too little memory; the others are still measured
            skipped[f"{case.name}, {case.size}"] = str(error).splitlines()[0]
        write(document, output)
    print(f"written to {output}")
    del declared
    return document


def _chosen(kind: str, networks: list[str] | None, sizes: list[str] | None) -> list[Case]:
    """The cases of the given networks and sizes, or all."""
    for given, known, name in (
        (networks, list(ABOUT), "networks"),
        (sizes, ["small", "large"], "sizes"),
    ):
        unknown = [each for each in given or () if each not in known]
        if unknown:
            raise ValueError(f"{name} must be among {', '.join(known)}, got {unknown[0]!r}")
    return [
        case
        for case in CASES[kind]
        if case.name in (networks or ABOUT) and case.size in (sizes or (case.size,))
    ]


def _available(cases: list[Case], seed: int) -> tuple[list[Case], dict[str, str]]:
    """The cases whose library can be imported, and why the other networks are left out."""
    skipped: dict[str, str] = {}
    tiny = {case.name: case for case in CASES["quick"]}
    for name in dict.fromkeys(case.name for case in cases):
        try:
            tiny[name].make(seed, "cpu")
        except (ImportError, RuntimeError) as error:  # diffusers raises the latter
            lines = str(error).strip().splitlines() or [type(error).__name__]
            skipped[name] = lines[0]
            print(f"{name} is left out: {lines[0]}")
    return [case for case in cases if case.name not in skipped], skipped


def compared(names: set[str], options: Options) -> list[Row]:
    """Gradients of tiny networks in float64, compared with central differences."""
    rows = []
    for case in CASES["quick"]:
        if case.name in names:
            row = agreement(case, options.seed, options.device)
            print(
                f"{case.name:8s} float64: gradients of ours and double backward differ by "
                f"{row['gradients']:.1e}; from differences {row['ours']:.1e} and {row['bare']:.1e}",
                flush=True,
            )
            rows.append(row)
    return rows


def timed(case: Case, options: Options) -> list[Row]:
    """Memory and interleaved times of all losses on one network."""
    model, x = case.make(options.seed, options.device)
    about = described(case, sum(p.numel() for p in model.parameters()))
    steps: list[Step] = []
    rows: list[Row] = []
    mode = "captured" if options.captured else "eager"
    for contender in contenders(NUMS):
        steps.append(_step(contender, model, x, case.vector, mode))
        row = {"network": case.name, "size": case.size, "about": about, "batch": case.batch}
        row |= {"library": contender.library, "objective": contender.name}
        rows.append({**row, "num": contender.num, "mode": mode, "vector": case.vector})
    for _ in range(4):  # ours checks the model at its 1st, 2nd, 4th, 8th use
        for step in steps:
            step()
    for row, step in zip(rows, steps):
        model.zero_grad(set_to_none=True)  # otherwise the step would first free memory
        wanted = options.memory and row["mode"] == "eager"
        row["peak_bytes"] = peak_bytes(step, options.device) if wanted else None
    if options.device == "cuda":
        torch.cuda.empty_cache()
    clock = time.process_time if options.processor_time else time.perf_counter
    times = interleaved(steps, options.rounds, 0, options.device, options.seed, clock)
    return with_ratios([{**row, "seconds": each} for row, each in zip(rows, times)])


def _step(contender: Contender, model: nn.Module, x: Tensor, vector: bool, mode: str) -> Step:
    """Zero gradients, mean loss, backward; captured, also a step of Adam."""
    if mode == "captured":
        own = copy.deepcopy(model)
        adam = torch.optim.Adam(own.parameters(), 1e-6, fused=True, capturable=x.is_cuda)
        whole = CapturedStep(field_of(own, vector), contender.objective, adam)
        return lambda: whole(x)
    field = field_of(model, vector)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        contender.objective(field, x).mean().backward()

    return step


def with_ratios(rows: list[Row]) -> list[Row]:
    """Add time and memory relative to double backward at the same M, and to DSM."""
    units: dict[tuple[str, str, int, str], Row] = {
        (row["library"], row["objective"], row["num"], row["mode"]): row for row in rows
    }
    for row in rows:
        by_hand = units["bare", row["objective"], row["num"], row["mode"]]
        dsm = units["bare", "DSM", 0, row["mode"]]
        row["ratio"], row["ratio_dsm"] = (_ratio(row, unit, _median) for unit in (by_hand, dsm))
        row["memory_ratio"] = _ratio(row, by_hand, lambda r: r["peak_bytes"])
    return rows


def _ratio(row: Row, unit: Row, value: Callable[[Row], Any]) -> float | None:
    return value(row) / value(unit) if value(row) and value(unit) else None


def _median(row: Row) -> Any:
    return row["seconds"]["median"]


def show(rows: list[Row]) -> list[Row]:
    """Print a line for every row, while the benchmark runs; returns the rows."""
    print(rows[0]["about"])
    for row in rows:
        times = [1e3 * row["seconds"][key] for key in ("median", "q25", "q75")]
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:8.1f} MB"
        peak += f" x {row['memory_ratio']:.2f}" if row["memory_ratio"] else ""
        print(
            f"  {row['mode']:8s} {row['library']:5s} {row['objective']:6s} M={row['num']} "
            f"{times[0]:9.2f} ms [{times[1]:.2f}, {times[2]:.2f}] x {row['ratio']:.2f} {peak}",
            flush=True,
        )
    return rows


def write(document: dict[str, Any], path: Path) -> None:
    """Write the document as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")

"""Milliseconds per training step of the paper's flow, by every executor of `train`.

NICE with four couplings of five hidden layers of 1000 units, D = 784, batches of 128, Adam, SSM-VR
with M = 1 and 16 and exact score matching, tf32 or bfloat16 products. Each row trains by
`scorematching.training.train`, and runs the same step without the loop; the difference is what the
loop costs. On a GPU each row has an account of its kernels. The executor "compiled+captured,
products apart" leaves out the rewriting of products, for comparison.

Example:
    python -m benchmarks.train_step --device cuda --precision high --precision medium
    python -m benchmarks.train_step --smoke
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from torch import Tensor

import scorematching as sm
from benchmarks.harness.command import Output, Smoke, Threads, command_line, run_command
from benchmarks.harness.provenance import stamp
from benchmarks.harness.training import bare_step, seconds_and_kernels
from scorematching.training import LossModule, TrainConfig, train
from scorematching.training.executors import compiled

APART = "compiled+captured, products apart"
EXECUTORS = {
    "cpu": ("eager", "compiled", "auto"),
    "cuda": ("eager", "compiled", "captured", APART, "auto"),
}
STEPS = {"eager": 200, "compiled": 200}
"""Steps that are timed; 1000 by captured executors. As many as a fifth precede them."""

OBJECTIVES: dict[str, Callable[[], sm.Objective]] = {
    "SSM-VR, M=1": sm.SlicedScoreMatchingVR,
    "SSM-VR, M=16": partial(sm.SlicedScoreMatchingVR, num_projections=16),
    "SM": sm.ScoreMatching,
}
EXACT_SHARE = 20
"""Exact score matching is timed on this many times fewer steps, since they take longer."""

PROGRAM = "python -m benchmarks.train_step"
Row = dict[str, Any]

Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of weights, points and directions.")]
Executors = Annotated[list[str] | None, typer.Option(help="Executors; repeatable [all].")]
Objectives = Annotated[list[str] | None, typer.Option(help="Objectives; repeatable [all].")]
Precisions = Annotated[
    list[str] | None,
    typer.Option(
        help="Of matrix products: high (tf32), medium (bfloat16); repeatable [high].",
    ),
]


def main(
    device: Device = "cpu",
    executors: Executors = None,
    objectives: Objectives = None,
    precision: Precisions = None,
    smoke: Smoke = False,
    threads: Threads = 1,
    seed: Seed = 0,
    output: Output = None,
) -> dict[str, Any]:
    """Time training steps of the paper's flow by every executor."""
    command = command_line(PROGRAM, main, locals())
    options = Options(_names(device, executors, smoke), device, smoke, seed)
    _check_known("objectives", objectives, OBJECTIVES)
    torch.set_num_threads(threads)
    print(f"{'objective':<12} {'executor':<33} {'ran':<18}  ms/step     bare     loop  first s")
    rows = [
        measure(objective, name, options, products)
        for products in precision or ["high"]
        for objective in objectives or OBJECTIVES
        for name in options.executors
    ]
    document = {**stamp(command, device), "seed": seed, "rows": rows}
    if output is not None:
        output.write_text(json.dumps(document, indent=1) + "\n")
    return document


@dataclass(frozen=True)
class Options:
    """What is timed, and where."""

    executors: list[str]
    device: str
    smoke: bool
    seed: int


def _names(device: str, wanted: list[str] | None, smoke: bool) -> list[str]:
    if device not in EXECUTORS:
        raise ValueError(f"device must be one of {', '.join(EXECUTORS)}, got {device!r}")
    _check_known("executors", wanted, (*EXECUTORS["cuda"], "compiled+captured"))
    return wanted or [name for name in EXECUTORS[device] if not (smoke and name == "compiled")]


def _check_known(what: str, wanted: list[str] | None, known: Iterable[str]) -> None:
    unknown = sorted(set(wanted or ()) - set(known))
    if unknown:
        raise ValueError(f"{what} must be among {'; '.join(known)}, got {unknown[0]!r}")


def measure(name: str, executor: str, options: Options, products: str = "high") -> Row:
    """One row: an executor in the loop and without it."""
    torch.set_float32_matmul_precision(products)
    share = EXACT_SHARE if name == "SM" else 1
    steps = 5 if options.smoke else STEPS.get(executor, 1000) // share
    objective = OBJECTIVES[name]()
    with products_apart() if executor == APART else nullcontext():
        result, seconds = train_for(steps, executor.split(",")[0], objective, options)
        bare, kernels = without_loop(steps, result.executor, objective, options)
    row = {
        "objective": name,
        "executor": executor,
        "products": products,
        "ran": result.executor,
        "ms_per_step": 1e3 * seconds,
        "bare_ms": 1e3 * bare,
        "loop_ms": 1e3 * (seconds - bare),
        "first_seconds": result.history[0].seconds,
        "kernels": kernels,
    }
    print(
        f"{name:<12} {executor:<33} {row['ran']:<18} {row['ms_per_step']:>8.3f} "
        f"{row['bare_ms']:>8.3f} {row['loop_ms']:>8.3f} {row['first_seconds']:>8.1f}",
        flush=True,
    )
    return row


@contextmanager
def products_apart() -> Iterator[None]:
    """Compiled steps without the rewriting of their matrix products."""
    with mock.patch.multiple(compiled, merge_products=_leave, batch_gradients=_leave):
        yield


def _leave(graph: Any) -> None:
    """Rewrite nothing."""


def train_for(
    steps: int, name: str, objective: sm.Objective, options: Options
) -> tuple[Any, float]:
    """A run of `train`, and the seconds of a step after the first fifth of it."""
    flow, x, generator = make(options)
    every = max(1, steps // 5)
    config = TrainConfig(steps=every + steps, lr=1e-5, batch_size=len(x) // 10, log_every=every)
    result = train(flow, objective, x, config, executor=name, generator=generator)
    first, last = result.history[0], result.history[-1]
    return result, (last.seconds - first.seconds) / (last.step - first.step)


def without_loop(
    steps: int, name: str, objective: sm.Objective, options: Options
) -> tuple[float, dict[str, Any]]:
    """The seconds of a step on one batch, without the loop, and the account of its kernels."""
    flow, x, generator = make(options)
    batch, device = x[: len(x) // 10].clone(), torch.device(options.device)
    losses = LossModule(flow, objective, generator, touch=False)
    adam = torch.optim.Adam(flow.parameters(), lr=1e-5, fused=batch.is_cuda or None)
    return seconds_and_kernels(bare_step(losses, adam, name, batch), steps, device)


def make(options: Options) -> tuple[sm.models.NICE, Tensor, torch.Generator]:
    """The flow, ten batches of points, and a generator."""
    dim, width, layers, batch = (6, 8, 1, 8) if options.smoke else (784, 1000, 5, 128)
    weights = torch.Generator().manual_seed(options.seed)
    flow = sm.models.NICE(dim, hidden=(width,) * layers, generator=weights).to(options.device)
    generator = torch.Generator(options.device).manual_seed(options.seed + 1)
    x = torch.randn(10 * batch, dim, generator=generator, device=options.device)
    return flow, x, generator


if __name__ == "__main__":
    run_command(main, f"{PROGRAM} --device cuda")

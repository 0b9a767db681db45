"""Milliseconds per training step of the paper's flow, by every executor of `train`.

NICE with four couplings of five hidden layers of 1000 units, D = 784, batches of 128, Adam, SSM-VR
with M = 1 and 16, tf32 or bfloat16 products. Each row trains by `scorematching.training.train`, and
runs the same step without the loop; the difference is what the loop costs.

Example:
    python -m benchmarks.train_step --device cuda --precision high --precision medium
    python -m benchmarks.train_step --smoke
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import scorematching as sm
from benchmarks.harness.command import Output, Smoke, Threads, command_line, run_command
from benchmarks.harness.provenance import stamp
from scorematching.training import LossModule, TrainConfig, train
from scorematching.training.executors import choose
from scorematching.training.ranks import Ranks
from scorematching.training.step import Gradients, Step

EXECUTORS = {
    "cpu": ("eager", "compiled", "auto"),
    "cuda": ("eager", "compiled", "captured", "compiled+captured", "auto"),
}
STEPS = {"eager": 200, "compiled": 200}
"""Steps that are timed; 1000 by captured executors. As many as a fifth precede them."""

PROGRAM = "python -m benchmarks.train_step"
Row = dict[str, Any]

Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of weights, points and directions.")]
Executors = Annotated[list[str] | None, typer.Option(help="Executors; repeatable [all].")]
Precisions = Annotated[
    list[str] | None,
    typer.Option(
        help="Of matrix products: high (tf32), medium (bfloat16); repeatable [high].",
    ),
]


def main(
    device: Device = "cpu",
    executors: Executors = None,
    precision: Precisions = None,
    smoke: Smoke = False,
    threads: Threads = 1,
    seed: Seed = 0,
    output: Output = None,
) -> dict[str, Any]:
    """Time training steps of the paper's flow by every executor."""
    command = command_line(PROGRAM, main, locals())
    options = Options(_names(device, executors, smoke), device, smoke, seed)
    torch.set_num_threads(threads)
    print("  M executor           ran                 ms/step     bare     loop  first s")
    rows = [
        measure(num, name, options, products)
        for products in precision or ["high"]
        for num in (1, 16)
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
    unknown = set(wanted or ()) - set(EXECUTORS["cuda"])
    if unknown:
        raise ValueError(
            f"executors must be among {', '.join(EXECUTORS['cuda'])}, got {unknown.pop()!r}"
        )
    return wanted or [name for name in EXECUTORS[device] if not (smoke and name == "compiled")]


def measure(num: int, name: str, options: Options, products: str = "high") -> Row:
    """One row: an executor in the loop and without it."""
    torch.set_float32_matmul_precision(products)
    steps = 5 if options.smoke else STEPS.get(name, 1000)
    objective = sm.SlicedScoreMatchingVR(num_projections=num)
    result, seconds = train_for(steps, name, objective, options)
    row = {
        "num": num,
        "executor": name,
        "products": products,
        "ran": result.executor,
        "ms_per_step": 1e3 * seconds,
        "bare_ms": 1e3 * bare_seconds(steps, result.executor, objective, options),
        "first_seconds": result.history[0].seconds,
    }
    row["loop_ms"] = row["ms_per_step"] - row["bare_ms"]
    print(
        f"{num:>3} {name:<18} {row['ran']:<18} {row['ms_per_step']:>8.3f} {row['bare_ms']:>8.3f} "
        f"{row['loop_ms']:>8.3f} {row['first_seconds']:>8.1f}"
    )
    return row


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


def bare_seconds(steps: int, name: str, objective: sm.Objective, options: Options) -> float:
    """The seconds of a step on one batch, without the loop."""
    flow, x, generator = make(options)
    batch, device = x[: len(x) // 10].clone(), torch.device(options.device)
    losses = LossModule(flow, objective, generator, touch=False)
    adam = torch.optim.Adam(flow.parameters(), lr=1e-5, fused=batch.is_cuda or None)
    step = Step(Gradients(losses), adam, losses.parts)
    execute = choose([name], step, losses, Ranks(device))
    for _ in range(max(5, steps // 5)):
        execute(batch)
    wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        execute(batch)
    wait(device)
    return (time.perf_counter() - start) / steps


def make(options: Options) -> tuple[sm.models.NICE, Tensor, torch.Generator]:
    """The flow, ten batches of points, and a generator."""
    dim, width, layers, batch = (6, 8, 1, 8) if options.smoke else (784, 1000, 5, 128)
    weights = torch.Generator().manual_seed(options.seed)
    flow = sm.models.NICE(dim, hidden=(width,) * layers, generator=weights).to(options.device)
    generator = torch.Generator(options.device).manual_seed(options.seed + 1)
    x = torch.randn(10 * batch, dim, generator=generator, device=options.device)
    return flow, x, generator


def wait(device: torch.device) -> None:
    """Wait for what was started on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    run_command(main, f"{PROGRAM} --device cuda")

"""Milliseconds per training step of the paper's flow, by every executor of `train`.

NICE with four couplings of five hidden layers of 1000 units, D = 784, batches of 128, Adam, SSM-VR
with M = 1 and 16, tf32. Each row trains by `scorematching.training.train`, and runs the same step
without the loop; the difference is what the loop costs.

Example:
    python -m benchmarks.train_step --device cuda --json out.json
    python -m benchmarks.train_step --smoke
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scorematching as sm
from benchmarks.harness.provenance import commit, device_name, now, versions
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

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark, print its table and write it as JSON.

    Args:
        arguments: the command line; None is that of the process.

    Returns:
        What is written: device, versions, commit and rows.
    """
    options = parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    names = list(options.executors or EXECUTORS[options.device])
    if options.smoke and not options.executors:
        names.remove("compiled")
    print("  M executor           ran                 ms/step     bare     loop  first s")
    rows = [measure(num, name, options) for num in (1, 16) for name in names]
    about = {"device": device_name(options.device), "versions": versions(), "commit": commit()}
    document = {"date": now(), "threads": options.threads, **about, "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return document


def parser() -> argparse.ArgumentParser:
    """The command line."""
    known = EXECUTORS["cuda"]
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--device", choices=list(EXECUTORS), default="cpu")
    made.add_argument("--executors", nargs="+", choices=known, help="which (all)")
    made.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs")
    made.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", type=Path, help="file to write")
    return made


def measure(num: int, name: str, options: argparse.Namespace) -> Row:
    """One row: an executor in the loop and without it."""
    steps = 5 if options.smoke else STEPS.get(name, 1000)
    objective = sm.SlicedScoreMatchingVR(num_projections=num)
    result, seconds = train_for(steps, name, objective, options)
    row = {
        "num": num,
        "executor": name,
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
    steps: int, name: str, objective: sm.Objective, options: argparse.Namespace
) -> tuple[Any, float]:
    """A run of `train`, and the seconds of a step after the first fifth of it."""
    flow, x, generator = make(options)
    every = max(1, steps // 5)
    config = TrainConfig(steps=every + steps, lr=1e-5, batch_size=len(x) // 10, log_every=every)
    result = train(flow, objective, x, config, executor=name, generator=generator)
    first, last = result.history[0], result.history[-1]
    return result, (last.seconds - first.seconds) / (last.step - first.step)


def bare_seconds(
    steps: int, name: str, objective: sm.Objective, options: argparse.Namespace
) -> float:
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


def make(options: argparse.Namespace) -> tuple[sm.models.NICE, Tensor, torch.Generator]:
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
    main(sys.argv[1:])

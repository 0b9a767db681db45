"""What it costs that every process draws the noise of all of them.

A process of P evaluates 128 points of a batch of 128 P, but draws directions for the whole batch,
so that noise does not depend on P. Timed here: that draw with the share of it that is taken, and
the step on 128 points, for SSM-VR, on one process.

Example:
    python -m benchmarks.shared_noise --output out.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import torch
import typer

import scorematching as sm
from benchmarks.harness.command import Output, Smoke, Threads, command_line, run_command
from benchmarks.harness.provenance import stamp

PROGRAM = "python -m benchmarks.shared_noise"
EACH = 128
"""Points of one process."""

Dim = Annotated[int, typer.Option(min=1, help="Coordinates of a point.")]


def main(
    dim: Dim = 100, smoke: Smoke = False, threads: Threads = 1, output: Output = None
) -> dict[str, Any]:
    """Time the draw of directions for 1 to 64 processes, beside a step of one of them."""
    command = command_line(PROGRAM, main, locals())
    torch.set_num_threads(threads)
    rounds = 3 if smoke else 50
    step = 1e3 * _seconds(_step(dim), rounds)
    print(f"step on {EACH} points of {dim} coordinates: {step:.2f} ms")
    rows = []
    for processes in (1, 2, 8, 64):
        draw = 1e3 * _seconds(_draw(dim, processes), rounds)
        rows.append({"processes": processes, "draw_ms": draw, "share": draw / step})
        print(f"{processes:3} processes: draw {draw:.3f} ms, {draw / step:.1%} of a step")
    document = {**stamp(command, "cpu"), "step_ms": step, "rows": rows}
    if output is not None:
        output.write_text(json.dumps(document, indent=1) + "\n")
    return document


def _draw(dim: int, processes: int) -> Callable[[], Any]:
    """Directions of the whole batch, and the share of one process."""
    objective, x = sm.SlicedScoreMatchingVR(), torch.zeros(EACH * processes, dim)
    g, rows = torch.Generator().manual_seed(0), slice(0, None, processes)
    return lambda: objective.share(objective.draw(x, g), x, rows)


def _step(dim: int) -> Callable[[], Any]:
    """Loss, gradient and update of a network with three hidden layers."""
    g = torch.Generator().manual_seed(0)
    density = sm.models.MLPDensity(dim=dim, hidden=(256, 256, 256), generator=g)
    x, adam = torch.randn(EACH, dim, generator=g), torch.optim.Adam(density.parameters())
    losses = sm.training.LossModule(density, sm.SlicedScoreMatchingVR(), g)

    def step() -> None:
        adam.zero_grad()
        losses(x).mean().backward()
        adam.step()

    return step


def _seconds(work: Callable[[], Any], rounds: int) -> float:
    """Median time of one call, after some that check the model."""
    times = []
    for _ in range(rounds + 10):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times[10:])


if __name__ == "__main__":
    run_command(main, PROGRAM)

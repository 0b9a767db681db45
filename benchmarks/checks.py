"""What trust costs: the checks of a model as a share of a training run, and tracing per operation.

For each network, 1000 training steps of SSM-VR with M = 1 are timed one by one. Checks run at the
1st, 2nd, 4th, 8th ... use of a model; their time is that of these steps beyond the median step.

Tracing is timed on a chain of sines of one number, where arithmetic takes no time: a loss by the
engine, and the same arithmetic (value, tangent, derivatives, adjoint) written by hand.

Example:
    python -m benchmarks.checks --output benchmarks/results/checks.json
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import scorematching as sm
from benchmarks.harness.command import Output, Threads, command_line, run_command
from benchmarks.harness.provenance import stamp
from benchmarks.harness.timing import interleaved

PROGRAM = "python -m benchmarks.checks"

NETWORKS = {
    "MLP 2x128, D=2": (2, (128, 128)),
    "MLP 3x256, D=100": (100, (256, 256, 256)),
    "MLP 2x512, D=784": (784, (512, 512)),
}
"""Coordinates and hidden units; batches have 128 points."""

REPEATS = 3
"""Runs of each network, of which the one with the median share is reported."""

OPERATIONS = 100
"""Length of the chain on which tracing is timed."""

Row = dict[str, Any]
Steps = Annotated[int, typer.Option(min=8, help="Training steps of each network.")]


def measure(steps: Steps = 1000, threads: Threads = 1, output: Output = None) -> dict[str, Any]:
    """Time the checks of three networks, and tracing per operation."""
    command = command_line(PROGRAM, measure, locals())
    torch.set_num_threads(threads)
    checks(next(iter(NETWORKS)), 8)  # the first loss of a process loads parts of torch
    rows = [middle([checks(name, steps) for _ in range(REPEATS)]) for name in NETWORKS]
    document = {**stamp(command), "steps": steps, "rows": rows, "tracing": tracing(steps // 8)}
    if output is not None:
        output.write_text(json.dumps(document, indent=1) + "\n")
    return document


def middle(rows: list[Row]) -> Row:
    """The run with the median share."""
    return sorted(rows, key=lambda row: float(row["share"]))[len(rows) // 2]


def checks(name: str, steps: int) -> Row:
    """The time of the checks in a training run of one network."""
    dim, hidden = NETWORKS[name]
    generator = torch.Generator().manual_seed(0)
    model = sm.models.MLPDensity(dim, hidden, nn.Softplus, generator=generator)
    x = torch.randn(128, dim, generator=generator)
    objective, optimizer = sm.SlicedScoreMatchingVR(), torch.optim.Adam(model.parameters(), 1e-4)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        objective(model, x, generator).mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    step = statistics.median(seconds)
    checked = [seconds[2**k - 1] - step for k in range(steps.bit_length())]
    share = sum(checked) / (steps * step)
    print(f"{name:18} step {1e3 * step:6.2f} ms, first {seconds[0]:.2f} s, checks {share:.1%}")
    return {"network": name, "step_ms": 1e3 * step, "first_s": seconds[0], "share": share}


def tracing(rounds: int) -> dict[str, float]:
    """Microseconds per operation: by the engine, and by hand."""
    x = torch.zeros(1, 1)

    def chain(x: Tensor) -> Tensor:
        for _ in range(OPERATIONS):
            x = torch.sin(x)
        return x.squeeze(-1)

    objective, field = sm.SlicedScoreMatchingVR(), sm.LogDensityField(chain)
    losses: list[Callable[[], Any]] = [lambda: objective(field, x), lambda: by_hand(x)]
    times = interleaved(losses, rounds, 20, "cpu")
    engine, hand = (1e6 * each["median"] / OPERATIONS for each in times)
    print(f"one operation: {engine:.1f} us traced, {hand:.1f} us by hand")
    return {"traced_us": engine, "by_hand_us": hand}


@torch.no_grad()
def by_hand(x: Tensor) -> Tensor:
    """The loss of the chain of sines: tangents forward, adjoints backward."""
    z, u, steps = x, torch.ones_like(x), []
    for _ in range(OPERATIONS):
        slope, y = torch.cos(z), torch.sin(z)
        steps.append((slope, -y * u.square()))
        z, u = y, slope * u
    adjoint, curvature = torch.ones_like(x), torch.zeros_like(x)
    for slope, bend in reversed(steps):
        curvature = curvature + adjoint * bend
        adjoint = adjoint * slope
    return (0.5 * adjoint.square() + curvature).squeeze(-1)


if __name__ == "__main__":
    run_command(measure, f"{PROGRAM} --output benchmarks/results/checks.json")

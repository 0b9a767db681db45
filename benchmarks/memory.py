"""Memory of evaluations and estimators against their limit: ``python -m benchmarks.memory``.

Every function with ``max_memory=`` is called with some limits, shares of what it takes without one.
The peak is that of torch's own profiler, which sees every allocation; the library measures by other
means. Memory beside model, points and results counts; for fits, the result counts too. Where a
limit is refused, the least one that is accepted is used instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from benchmarks.budgets import Call, calls
from benchmarks.harness.command import Docs, Output, Smoke, command_line, run_command
from benchmarks.harness.provenance import stamp
from benchmarks.pages import memory as page
from benchmarks.pages.parts import publish

PROGRAM = "python -m benchmarks.memory"
SHARES = (0.5, 0.25)

Points = Annotated[int, typer.Option(min=256, help="Number of points.")]
Dim = Annotated[int, typer.Option(min=6, help="Coordinates of a point.")]


@dataclass(frozen=True)
class Peak:
    """Memory of one call.

    Attributes:
        name: of the function.
        budget: bytes that it may take; None is without limit.
        bytes: that it took.
        result: what it returned, as numbers.
        refused: whether less was tried and refused.
    """

    name: str
    budget: int | None
    bytes: int
    result: torch.Tensor
    refused: bool = False

    @property
    def ratio(self) -> float:
        """The peak relative to the budget."""
        return self.bytes / (self.budget or self.bytes)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: of the function.
        free: bytes that it takes without a limit.
        budget: the limit.
        peak: bytes that it took.
        error: largest difference to the result without a limit.
        refused: whether less was tried and refused.
    """

    name: str
    free: int
    budget: int
    peak: int
    error: float
    refused: bool


def measure(name: str, call: Call, budget: int | None, refused: bool = False) -> Peak:
    """The peak of a call; functions are called once before, since first calls check the model."""
    if budget is None:
        call(None)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call(budget)
    kineto: Any = profiler.profiler
    events = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    peak -= getattr(call, "copied", 0)
    return Peak(name, budget, peak, torch.as_tensor(result).double().flatten(), refused)


def within(name: str, call: Call, budget: int, tries: int = 30) -> Peak:
    """The peak of a call with a limit, or with the least one that it asks for in its errors."""
    for attempt in range(tries):
        try:
            return measure(name, call, budget, refused=attempt > 0)
        except ValueError as error:
            found = re.search(r"max_memory must be at least (\d+) bytes", str(error))
            if found is None:
                raise
            budget = max(int(1.05 * budget), int(found[1]))
    raise RuntimeError(f"{name} accepts no limit up to {budget}")


def measure_all(points: int, dim: int, shares: tuple[float, ...]) -> Iterator[list[Peak]]:
    """For every function its peak without a budget, and with shares of that as budgets."""
    for name, call in calls(points, dim).items():
        free = measure(name, call, None)
        yield [free, *(within(name, call, int(share * free.bytes)) for share in shares)]


def main(
    points: Points = 2048,
    dim: Dim = 20,
    smoke: Smoke = False,
    output: Output = None,
    docs: Docs = None,
) -> dict[str, Any]:
    """Measure the memory of every function with a limit, by two limits each."""
    command = command_line(PROGRAM, main, locals())
    points = 256 if smoke else points
    torch.set_num_threads(1)
    rows = []
    print(f"{'function':34} {'free MB':>8} {'limit MB':>9} {'peak MB':>8} {'ratio':>6}")
    for free, *peaks in measure_all(points, dim, SHARES):
        for peak in peaks:
            error = (peak.result - free.result).abs().max().item()
            budget = peak.budget or 0
            rows.append(Row(peak.name, free.bytes, budget, peak.bytes, error, peak.refused))
            print(_line(rows[-1]), flush=True)
    packages = ("torch", "numpy", "scorematching")
    document = {**stamp(command, "cpu", packages=packages), "points": points, "dim": dim}
    document["rows"] = [asdict(row) for row in rows]
    if not smoke or output is not None:
        publish(document, "memory", output, docs, page.write)
    return document


def _line(row: Row) -> str:
    megabytes = (size / 1e6 for size in (row.free, row.budget, row.peak))
    numbers = "{:8.2f} {:9.2f} {:8.2f}".format(*megabytes)
    note = "  less is refused" if row.refused else ""
    return f"{row.name:34} {numbers} {row.peak / row.budget:6.2f}{note}"


if __name__ == "__main__":
    run_command(main, PROGRAM)

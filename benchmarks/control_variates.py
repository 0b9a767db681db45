"""Coverage and variance of `evaluation.control_variate`.

Expectations of two functions over the standard normal distribution, from independent points: how
often intervals of two sides and 95% hold the truth, what the variance of the estimate is relative
to that of the plain mean, and whether the standard error is right on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.harness.command import Docs, Output, command_line, run_command
from benchmarks.harness.jobs import Jobs, run_tasks
from benchmarks.harness.provenance import stamp
from benchmarks.pages import control_variates as page
from benchmarks.pages.parts import publish
from scorematching.evaluation import control_variate

DIMENSIONS, POINTS, CHUNK = (1, 2, 3, 5), (100, 300), 50
TWO_SIDED = 1.959963984540054
"""Standard errors to either side in an interval of 95%."""


class Question(NamedTuple):
    """A function of points and its expectation over standard normal ones in D dimensions."""

    f: Callable[[Tensor], Tensor]
    truth: Callable[[int], float]


QUESTIONS = {
    "squared length": Question(lambda x: x.square().sum(1), float),
    "cosine of the sum": Question(lambda x: x.sum(1).cos(), lambda dim: math.exp(-dim / 2)),
}


def cells() -> list[tuple[str, int, int]]:
    """Question, dimension and number of points of every cell."""
    return [(name, dim, n) for name in QUESTIONS for dim in DIMENSIONS for n in POINTS]


def estimates(index: int, first: int, count: int) -> list[list[float]]:
    """Effective counts, and errors with standard errors, controlled and plain, of data sets."""
    name, dim, n = cells()[index]
    question, found = QUESTIONS[name], []
    for dataset in range(first, first + count):
        g = torch.Generator().manual_seed(1_000_000 * index + dataset)
        x = torch.randn(n, dim, generator=g, dtype=torch.float64)
        one = control_variate(question.f, x, lambda x: -x)
        row = [one.effective_count]
        for each in (one.controlled, one.plain):
            row += [each.mean - question.truth(dim), each.standard_error]
        found.append(row)
    return found


def summary(cell: tuple[str, int, int], found: list[list[float]]) -> dict[str, Any]:
    """What the file of results says of a cell."""
    effective, error, size, plain, plain_size = np.array(found).T
    return {
        **dict(zip(("question", "dim", "points"), cell)),
        "coverage": float((abs(error) <= TWO_SIDED * size).mean()),
        "plain_coverage": float((abs(plain) <= TWO_SIDED * plain_size).mean()),
        "variance_ratio": float((error**2).mean() / (plain**2).mean()),
        "error_over_sd": float(((size**2).mean() / (error**2).mean()) ** 0.5),
        "effective_count": float(np.median(effective)),
    }


def _rows(tasks: list[tuple[int, int, int]], parts: list[Any]) -> Iterator[dict[str, Any]]:
    for index, cell in enumerate(cells()):
        found = [row for task, part in zip(tasks, parts) if task[0] == index for row in part]
        yield summary(cell, found)


Datasets = Annotated[int, typer.Option(min=2, help="Data sets of every cell.")]


def measure(
    datasets: Datasets = 1000, jobs: Jobs = 1, out: Output = None, docs: Docs = None
) -> Path:
    """Measure how often intervals hold the truth; write docs/control-functionals.md."""
    options = {**locals(), "jobs": 1}
    command = command_line("python -m benchmarks.control_variates", measure, options)
    tasks = [
        (index, first, min(CHUNK, datasets - first))
        for index in range(len(cells()))
        for first in range(0, datasets, CHUNK)
    ]
    rows = [*_rows(tasks, run_tasks(estimates, tasks, jobs))]
    document = {**stamp(command), "datasets": datasets, "rows": rows}
    return publish(document, "control_variates", out, docs, page.write)


if __name__ == "__main__":
    run_command(measure, "python -m benchmarks.control_variates --datasets 1000 --jobs 4")

"""False-positive rate and power of the kernel Stein discrepancy tests.

Every cell is a hypothesis and a distribution of data sets of 100 points in two dimensions. It
counts how often the hypothesis is rejected at 5%.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.harness.command import Docs, Output, command_line, run_command
from benchmarks.harness.jobs import Jobs, run_tasks
from benchmarks.harness.provenance import stamp
from benchmarks.pages import ksd as ksd_page
from benchmarks.pages.parts import publish
from scorematching.distributions import Distribution, Gaussian, GaussianMixture
from scorematching.evaluation import Fitted, Fixed, Split, ksd_test

POINTS, LEVEL, CHUNK = 100, 0.05, 25
DRAWS = {"wild": 199, "parametric": 99}
"""Draws of the null distribution; 0.05 times their number plus one is an integer."""

F64 = torch.float64
Test = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Cell:
    """A hypothesis, as a function of the data, and the distribution of the data.

    Attributes:
        group: "level" or a kind of deviation.
        name: of the test, or of the deviation.
        amount: size of the deviation.
        test: data -> `Fixed`, `Fitted` or `Split`.
        data: what data sets are drawn from.
        draws: of the null distribution.
    """

    group: str
    name: str
    amount: float
    test: Test
    data: Distribution
    draws: int = DRAWS["wild"]


def normal(mean: float = 0.0, sd: float = 1.0) -> Gaussian:
    """A normal distribution whose first coordinate has another mean or standard deviation."""
    variance = torch.tensor([sd**2, 1.0], dtype=F64)
    return Gaussian(torch.tensor([mean, 0.0], dtype=F64), variance.diag())


def two_modes(distance: float, share: float = 0.5) -> GaussianMixture:
    """Two unit normal distributions, the second at a distance and with a share of the points."""
    weights = torch.tensor([1 - share, share], dtype=F64)
    return GaussianMixture(weights, torch.tensor([[0.0, 0.0], [distance, 0.0]], dtype=F64))


def fit_normal(x: Tensor) -> Gaussian:
    """Sample mean and covariance."""
    return Gaussian(x.mean(0), x.T.cov())


FAMILY = Fitted(fit_normal, lambda model, n, generator: model.sample(n, generator))


def cells() -> list[Cell]:
    """All cells of the benchmark."""
    known, parametric = Fixed(normal()), DRAWS["parametric"]
    level = [
        Cell("level", "fixed, wild bootstrap", 0, lambda x: known, normal()),
        Cell(
            "level", "fixed mixture, wild bootstrap", 0, lambda x: Fixed(two_modes(3)), two_modes(3)
        ),
        Cell("level", "fitted, parametric bootstrap", 0, lambda x: FAMILY, normal(), parametric),
        Cell("level", "fitted, split, 10% tested", 0, lambda x: Split(fit_normal, 0.1), normal()),
        Cell("level", "fitted, split, 50% tested", 0, lambda x: Split(fit_normal, 0.5), normal()),
        Cell(
            "level", "fitted, wild bootstrap (invalid)", 0, lambda x: Fixed(fit_normal(x)), normal()
        ),
    ]
    power = [Cell("power", "wrong mean", m, lambda x: known, normal(mean=m)) for m in MEANS]
    power += [Cell("power", "wrong deviation", s, lambda x: known, normal(sd=s)) for s in SPREADS]
    power += [
        Cell("power", "mode missing in the model", p, lambda x: known, two_modes(4, p))
        for p in SHARES
    ]
    power += [
        Cell("power", "mode missing in the data", d, _fixed_modes(d), normal()) for d in DISTANCES
    ]
    power += [
        Cell("fitted power", "two modes, fitted", d, lambda x: FAMILY, two_modes(d), parametric)
        for d in DISTANCES
    ]
    return level + power


MEANS, SPREADS = (0.1, 0.2, 0.3, 0.4, 0.5), (0.6, 0.8, 1.25, 1.5, 2.0)
SHARES, DISTANCES = (0.02, 0.05, 0.1, 0.2), (2.0, 3.0, 4.0, 6.0)


def _fixed_modes(distance: float) -> Test:
    return lambda x: Fixed(two_modes(distance))


def p_values(index: int, first: int, count: int) -> list[float]:
    """P-values of data sets ``first ... first + count - 1`` of a cell."""
    cell, found = cells()[index], []
    for dataset in range(first, first + count):
        g = torch.Generator().manual_seed(1_000_000 * index + dataset)
        x = cell.data.sample(POINTS, g)
        found.append(ksd_test(cell.test(x), x, num_bootstrap=cell.draws, generator=g).p_value)
    return found


def binomial_range(n: int, probability: float = LEVEL, coverage: float = 0.99) -> tuple[int, int]:
    """Counts between the quantiles of a binomial distribution.

    Example:
        >>> binomial_range(500)
        (13, 38)
    """
    chances = [
        math.comb(n, k) * probability**k * (1 - probability) ** (n - k) for k in range(n + 1)
    ]
    below = list(itertools.accumulate(chances))
    tail = (1 - coverage) / 2
    return bisect.bisect_left(below, tail), bisect.bisect_left(below, 1 - tail)


def summary(cell: Cell, found: list[float]) -> dict[str, Any]:
    """What the file of results says of a cell."""
    rejected = sum(p <= LEVEL for p in found)
    row = {
        "group": cell.group,
        "name": cell.name,
        "amount": cell.amount,
        "rejected": rejected,
        "datasets": len(found),
        "rate": rejected / len(found),
    }
    if cell.group == "level":
        low, high = binomial_range(len(found))
        row |= {"range": [low, high], "right": low <= rejected <= high}
        row["p_values"] = sorted(round(p, 3) for p in found)
    return row


Datasets = Annotated[int, typer.Option(min=1, help="Data sets of every cell.")]


def measure(
    datasets: Datasets = 500, jobs: Jobs = 1, out: Output = None, docs: Docs = None
) -> Path:
    """Measure how often the tests reject; write the numbers and docs/goodness-of-fit.md."""
    command = command_line("python -m benchmarks.ksd", measure, {**locals(), "jobs": 1})
    everything = cells()
    tasks = [
        (index, first, min(CHUNK, datasets - first))
        for index in range(len(everything))
        for first in range(0, datasets, CHUNK)
    ]
    parts = run_tasks(p_values, tasks, jobs)
    rows = []
    for index, cell in enumerate(everything):
        found = [p for task, part in zip(tasks, parts) if task[0] == index for p in part]
        rows.append(summary(cell, found))
    document = {**stamp(command), "points": POINTS, "draws": DRAWS, "cells": rows}
    return publish(document, "ksd", out, docs, ksd_page.write)


if __name__ == "__main__":
    run_command(measure, "python -m benchmarks.ksd --datasets 500 --jobs 16")

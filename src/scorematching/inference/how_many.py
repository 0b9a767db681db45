"""How much variance random directions add to an estimate, and how many are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorematching._checks import check_positive
from scorematching._tables import text_table
from scorematching.inference.covariance import Split, split
from scorematching.inference.optimise import solve

COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class HowMany:
    """Variance of estimates by sliced score matching, relative to exact score matching.

    Attributes:
        names: of the parameters.
        counts: M, directions per point.
        inflation: of the variance of every parameter, one row for each M, ``(len(counts), P)``.
        share: that is allowed.
        suggested: the smallest M for which no parameter's variance grows by more than the share;
            None if more than the largest count are needed.

    Example:
        >>> how = HowMany(("a",), (1, 2), ((1.3,), (1.15,)), 0.2, 2)
        >>> print(how)
        M  a
        1  1.3
        2  1.15
        2 directions per point add at most 20% to the variance of any parameter.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    inflation: tuple[tuple[float, ...], ...]
    share: float
    suggested: int | None

    def __str__(self) -> str:
        rows = [
            [str(count), *(f"{value:.4g}" for value in row)]
            for count, row in zip(self.counts, self.inflation)
        ]
        table = text_table(["M", *self.names], rows)
        enough = f"More than {self.counts[-1]}" if self.suggested is None else str(self.suggested)
        verb = "are needed to add" if self.suggested is None else "add"
        subject = "direction per point adds" if enough == "1" else f"directions per point {verb}"
        return (
            f"{table}\n{enough} {subject} at most {100 * self.share:g}% to the "
            "variance of any parameter."
        )

    __repr__ = __str__  # at the prompt, too


def how_many_projections(setting: Any, names: Sequence[str], share: float) -> HowMany:
    """The inflation ``diag(H^-1 (K_data + K_M) H^-1) / diag(H^-1 K_data H^-1)`` for every M.

    K_M is K_1 / M for independent directions, and measured for every M where the directions of a
    point are orthogonal.
    """
    check_positive(share, "share", "0.1 allows ten percent more variance")
    own = setting.objective
    hessian = setting.optimum.derivatives.hessian
    exact = _diagonal(hessian, setting.split.data)
    rows = []
    for count in COUNTS:
        if own.projection.orthogonal:
            noise = _measured(setting, count).directions
        else:
            noise = setting.split.directions * own.num_projections / count
        rows.append(1 + _diagonal(hessian, noise) / exact)
    enough = [count for count, row in zip(COUNTS, rows) if (row <= 1 + share).all()]
    inflation = tuple(tuple(row.tolist()) for row in rows)
    return HowMany(tuple(names), COUNTS, inflation, share, min(enough, default=None))


def _measured(setting: Any, count: int) -> Split:
    """K with another number of directions per point."""
    objective = replace(setting.objective, num_projections=count)
    parts = tuple(replace(p, objective=objective) for p in setting.problem.parts)
    problem = replace(setting.problem, parts=parts)
    generator = torch.Generator().manual_seed(setting.seed)
    return split(problem, setting.optimum.theta, setting.groups, generator)


def _diagonal(hessian: Tensor, k: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return solve(hessian, solve(hessian, k).T).diagonal().numpy()

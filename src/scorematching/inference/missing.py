"""Rows with missing entries: score matching of the marginal density of what was observed.

A row with observed coordinates o and missing ones m has the log-density
``log integral f(x_o, x_m) dx_m``, estimated with K draws from a proposal q by
``logsumexp_k(log f(x_o, z_k) - log q(z_k))``; its score and divergence are those of this function.
The draws are made once, independently for every row. The estimate has a bias of order 1/K, and it
is consistent only if entries are missing completely at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count
from scorematching.distributions import StudentT
from scorematching.domains import Box
from scorematching.domains.base import refuse_rows
from scorematching.inference.problem import Part, Problem
from scorematching.objectives.base import Objective

MOST_BIAS = 0.04
"""Mean of ``sum_k W_k^2`` over all rows up to which the bias, some per cent, is accepted. For 1000
rows, 40% of them incomplete, it is then about one standard error."""

ROWS_TIMES_DRAWS = 2**17
"""Points at which a log-density is evaluated at a time."""

DEGREES = 5.0
"""Of freedom of the Student-t proposal of coordinates without bounds."""


@dataclass(frozen=True)
class ImportanceWeighted:
    """Marginal densities of incomplete rows by importance sampling.

    Missing coordinates are drawn independently of each other: from a Student-t distribution with
    the column's mean and spread where there are no bounds, from an exponential one above a single
    bound, and from the uniform one between two.

    Args:
        draws: K, for every incomplete row; cost grows with it, bias shrinks like 1/K.

    Reference: Givens, Liu and Reeve (2025), Score matching with missing data.

    Example:
        >>> ImportanceWeighted(draws=400)
        ImportanceWeighted(draws=400)
    """

    draws: int = 100

    def __post_init__(self) -> None:
        """Check the argument."""
        check_count(self.draws, "draws", "100 is a start")

    def parts(self, x: Tensor, objective: Objective, generator: torch.Generator) -> list[Part]:
        """The rows of a table, by which of their entries are missing.

        Args:
            x: the table ``(N, D)`` with NaN for missing entries.
            objective: of complete rows.
            generator: source of randomness.

        Raises:
            ValueError: if a row has no entry, or a column none.
        """
        lost = x.isnan()
        refuse_rows(lost.all(1), "every row of X must have an entry", "drop these rows")
        if bool(lost.all(0).any()):
            columns = lost.all(0).nonzero()[:, 0].tolist()
            raise ValueError(f"every column of X must have an entry, got none in {columns}")
        box = _box(objective)
        if box is not None:  # comparisons with NaN are false
            outside = (box.distances(x) < 0).any(1)
            refuse_rows(outside, f"x must lie in {box}", "drop or correct these rows")
        patterns, index = lost.unique(dim=0, return_inverse=True)
        parts = []
        for number, pattern in enumerate(patterns):
            rows = (index == number).nonzero()[:, 0]
            own = Part(rows, x[rows][:, ~pattern], _observed(objective, ~pattern))
            if bool(pattern.any()):
                own = replace(own, view=self._view(x, len(rows), pattern, box, generator))
            parts.append(own.drawn(generator))
        return parts

    def _view(
        self, x: Tensor, n: int, pattern: Tensor, box: Box | None, generator: torch.Generator
    ) -> Any:
        """How rows of one pattern see a log-density."""
        columns = pattern.nonzero()[:, 0].tolist()
        drawn = [_proposal(x[:, j], box, j, (self.draws, n), generator) for j in columns]
        z, log_q = (torch.stack(part, -1) for part in zip(*drawn))
        return Marginal(pattern, z, log_q.sum(-1))


@dataclass(frozen=True, eq=False)
class Marginal:
    """The log-density of the observed coordinates, from that of all.

    Attributes:
        pattern: which coordinates are missing, ``(D,)``.
        z: draws of them, ``(K, n, m)``.
        log_q: log-density of the draws, ``(K, n)``.
    """

    pattern: Tensor
    z: Tensor
    log_q: Tensor

    def take(self, places: Tensor) -> Marginal:
        """The view of some of the rows."""
        return replace(self, z=self.z[:, places], log_q=self.log_q[:, places])

    def __call__(self, call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The marginal of a log-density ``(N, D) -> (N,)``."""
        return lambda x: torch.logsumexp(self.log_weights(call, x), 0) - math.log(len(self.z))

    def log_weights(self, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``log f(x_o, z_k) - log q(z_k)`` at observed coordinates, ``(K, n)``."""
        order = torch.cat([(~self.pattern).nonzero()[:, 0], self.pattern.nonzero()[:, 0]]).argsort()
        points = torch.cat([x.expand(len(self.z), *x.shape), self.z], -1)[..., order]
        values = call(points.reshape(-1, points.shape[-1])).reshape(len(self.z), -1)
        return values - self.log_q


def require_draws(problem: Problem, theta: Tensor) -> None:
    """Refuse estimates that are biased because few draws have most of the weight.

    The bias is of the order of the mean over rows of ``sum_k W_k^2``, with W the weights of the
    draws of an incomplete row: 1/K if all are equal, more where what was observed nearly determines
    what is missing.

    Args:
        problem: with incomplete rows, or without.
        theta: the estimates.

    Raises:
        ValueError: with the number of draws that would do.
    """
    call, bias, share, draws = problem.model.at(theta), 0.0, 0.0, 0
    for part in problem.parts:
        if not isinstance(part.view, Marginal):
            continue
        draws = len(part.view.z)
        for places in torch.arange(len(part.x)).split(max(1, ROWS_TIMES_DRAWS // draws)):
            piece, own = part.take(places), problem.weights[part.rows[places]]
            view: Any = piece.view
            with torch.no_grad():
                squares = view.log_weights(call, piece.x).softmax(0).square().sum(0)
            bias, share = bias + float(own @ squares), share + float(own.sum())
    if bias > MOST_BIAS:
        enough = math.ceil(draws * 2 * bias / MOST_BIAS / 100) * 100
        raise ValueError(
            f"missing values need more draws, got {draws} in every incomplete row, of which "
            f"{share / bias:.1f} count on average, since what was observed nearly determines what "
            f"is missing: estimates would be biased; use missing=ImportanceWeighted(draws={enough})"
        )


def _box(objective: Objective) -> Box | None:
    domain = getattr(objective, "domain", None)
    if domain is None or isinstance(domain, Box):
        return domain
    raise ValueError(
        f"missing values need a domain that is a box, got {domain}; drop incomplete rows"
    )


def _bounds(box: Box | None, j: int) -> tuple[float, float]:
    if box is None:
        return -torch.inf, torch.inf
    low, high = (b if isinstance(b, float) else b[j] for b in (box.lower, box.upper))
    return low, high


def _observed(objective: Any, kept: Tensor) -> Objective:
    """The objective with the domain of the observed coordinates."""
    box = _box(objective)
    if box is None or (isinstance(box.lower, float) and isinstance(box.upper, float)):
        return objective
    low, high = (
        tuple(_bounds(box, j)[side] for j in kept.nonzero()[:, 0].tolist()) for side in (0, 1)
    )
    return replace(objective, domain=Box(low, high, box.h))


def _proposal(
    column: Tensor, box: Box | None, j: int, shape: tuple[int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draws of a missing coordinate and their log-density, both of the given shape."""
    seen = column[~column.isnan()]
    low, high = _bounds(box, j)
    if low == -torch.inf and high == torch.inf:
        truth = StudentT(1, DEGREES, seen.mean(), seen.std(correction=0).clamp_min(1e-12))
        z = truth.sample(shape[0] * shape[1], generator)
        return z.reshape(shape), truth(z).reshape(shape)
    u = torch.rand(shape, generator=generator, dtype=torch.float64)
    if low > -torch.inf and high < torch.inf:
        return low + (high - low) * u, torch.zeros(shape, dtype=torch.float64)
    bound, sign = (low, 1.0) if low > -torch.inf else (high, -1.0)
    mean = (seen - bound).abs().mean()
    away = -mean * (1 - u).log()
    return bound + sign * away, -away / mean

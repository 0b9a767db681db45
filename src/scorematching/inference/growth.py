"""Gradients of the loss that grow near a bound faster than points become rare there.

Where the score is infinite at a bound, as that of a gamma density is, a weight h that vanishes
slowly leaves gradients that grow like ``d^-alpha`` with the distance d. If the chance of a distance
below d falls like ``d^a`` with ``a < 2 alpha``, their variance is infinite: estimates depend on the
nearest few points, and standard errors say nothing. With h = min(x, 1) a gamma shape of 0.3 is
estimated as 1.00000001 with a standard error of 1e-8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching.domains import Box, weight_function
from scorematching.inference.optimise import Optimum
from scorematching.inference.parameters import Parametric
from scorematching.inference.problem import Part, Problem, needs_all_rows, unchanged
from scorematching.objectives import ScoreMatching

NEAREST = 50
"""Points nearest to a bound that a is estimated from; at most a tenth of all, but ten or more."""

ROWS = 4
"""Points that are moved towards a bound."""

STEP = 1e-4
"""Distance of the closer of two moves, in units of that of the nearest point, the other one."""

STEEPEST = 2.0
"""The largest alpha that is looked for."""


class Edge(NamedTuple):
    """A bound of a column.

    Attributes:
        column: of the points.
        sign: +1 for a lower bound, -1 for an upper one.
        bound: its place.
        nearest: distance of the nearest point that is not on it, to rounding.
        mean: distance of the points.
        power: a, of d in the chance of a distance below d, one standard error above its estimate.
    """

    column: int
    sign: float
    bound: float
    nearest: float
    mean: float
    power: float


def require_variance(problem: Problem, optimum: Optimum) -> None:
    """Refuse a weight with which gradients of points near a bound have an infinite variance.

    Args:
        problem: with points and weights.
        optimum: the estimates.

    Raises:
        ValueError: naming the column and a weight that suits it.
    """
    part = next((part for part in problem.parts if part.view is unchanged), None)
    box = getattr(part and part.objective, "domain", None)
    if part is None or not isinstance(box, Box):
        return
    x = part.x[problem.weights[part.rows] > 0]
    edges = [edge for edge in _edges(box, x.flatten(1)) if edge.power < 2 * STEEPEST]
    rows = part.x if needs_all_rows(problem.model.at(optimum.theta), part.x) else x[:ROWS]
    for edge, alpha in zip(edges, _growth(problem, optimum, rows, box, edges)):
        if edge.power < 2 * alpha:
            raise _refusal(box, edge, alpha)


def _edges(box: Box, x: Tensor) -> Iterator[Edge]:
    """The finite bounds of points ``(N, D)``, where enough of these are near."""
    count = max(10, min(NEAREST, len(x) // 10))
    for sign, bounds in ((1.0, box.lower), (-1.0, box.upper)):
        each = torch.as_tensor(bounds, dtype=x.dtype).expand(x.shape[1])
        for column in each.isfinite().nonzero()[:, 0].tolist():
            bound = float(each[column])
            distance = sign * (x[:, column] - bound)
            near = distance[distance > 0].sort().values[: count + 1]
            if len(near) <= count:
                continue
            # Hill's estimate.
            power = count / float((near[-1] / near[:-1]).log().sum().clamp_min(1e-9))
            rounding = 1e6 * torch.finfo(x.dtype).eps * abs(bound)
            places = (bound, max(float(near[0]), rounding), float(distance.mean()))
            yield Edge(column, sign, *places, power * (1 + count**-0.5))


def _growth(
    problem: Problem, optimum: Optimum, rows: Tensor, box: Box, edges: list[Edge]
) -> list[float]:
    """alpha, the power of 1 / d by which gradients grow, for every edge."""
    if not edges:
        return []
    moved = []
    for edge in edges:
        for distance in (edge.nearest, STEP * edge.nearest):
            flat = rows.flatten(1).clone()
            flat[:, edge.column] = edge.bound + edge.sign * distance
            moved.append(flat.reshape(rows.shape))
    own, gradients = problem.weights, optimum.derivatives.gradients
    # One combination of the parameters, each in units of its gradient, costs one pass for all.
    size = (own @ gradients.square()).sqrt()
    u = torch.randn(size.shape, generator=torch.Generator().manual_seed(0), dtype=size.dtype)
    u = torch.where(size > 0, u / size, 0.0)
    usual = (own @ (gradients @ u).square()).sqrt()
    together = moved if len(rows) > ROWS else [torch.cat(moved)]
    found = torch.cat([_along(problem.model, optimum.theta, u, x, box) for x in together])
    values = found.abs().reshape(len(edges), 2, -1)
    ratios = (values[:, 1] + usual) / (values[:, 0] + usual)
    return [math.log(ratio) / -math.log(STEP) for ratio in ratios.median(1).values.tolist()]


def _along(model: Parametric, theta: Tensor, u: Tensor, x: Tensor, box: Box) -> Tensor:
    """Gradients of exact score matching at points, along parameters u, ``(N,)``."""
    probes = Part(torch.arange(len(x)), x, ScoreMatching(domain=box))
    ones = torch.ones(len(x), dtype=x.dtype)
    return Problem(model, (probes,), ones).gradients_along(theta, u)


def _refusal(box: Box, edge: Edge, alpha: float) -> ValueError:
    """The error, with a power of the distance that makes gradients bounded."""
    distance = edge.nearest * torch.tensor([STEP, 1.0], dtype=torch.float64)
    low, high = weight_function(box.h)(distance).log().tolist()
    power = math.ceil(2 * ((high - low) / -math.log(STEP) + min(alpha, 1.0)) - 0.2) / 2
    side = "lower" if edge.sign > 0 else "upper"
    return ValueError(
        f"h must vanish faster at the {side} bound of column {edge.column}, got {box}, with which "
        f"gradients of the loss grow like d^-{alpha:.2g} at the distance d, where the score is "
        f"infinite, and points reach too near (the chance of less than d falls like "
        f"d^{edge.power:.2g}): standard errors do not exist; use "
        f'h="min(x^{power:g}, {edge.mean**power:.2g})"'
    )

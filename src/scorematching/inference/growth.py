"""Gradients of the loss that grow near a bound faster than points become rare there.

Where the score is infinite at a bound, as that of a gamma density is, a weight h that vanishes
slowly leaves gradients that grow like ``d^-alpha`` with the distance d. If the chance of a distance
below d falls like ``d^a`` with ``a < 2 alpha``, their variance is infinite: estimates depend on the
nearest few points, and standard errors say nothing. With h = min(x, 1) a gamma shape of 0.3 is
estimated as 1.00000001 with a standard error of 1e-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching.derivatives.repeats import needs_all_rows
from scorematching.domains import Box, Domain, Simplex, weight_function
from scorematching.domains.weights import gradient
from scorematching.inference.optimise import Optimum
from scorematching.inference.parameters import Parametric
from scorematching.inference.problem import Part, Problem, unchanged
from scorematching.objectives import ScoreMatching

NEAREST = 50
"""Points nearest to a bound that a is estimated from; at most a tenth of all, but ten or more."""

ROWS = 4
"""Points that are moved towards a bound."""

STEP = 1e-4
"""Distance of the closer of two moves, in units of that of the nearest point, the other one."""

STEEPEST = 2.0
"""The largest alpha that is looked for."""

NEWTON = 20
"""Steps of a point to a depth; one does for a distance that is smooth."""


Bounded = Box | Domain | Simplex
"""Domains with a boundary at which weights are examined."""


class Edge(NamedTuple):
    """A part of the boundary.

    Attributes:
        place: what it is called in messages.
        move: ``(points, distance) -> points`` at that distance from it.
        nearest: distance of the nearest point that is not on it, to rounding.
        mean: distance of the points.
        power: a, of d in the chance of a distance below d, one standard error above its estimate.
    """

    place: str
    move: Callable[[Tensor, float], Tensor]
    nearest: float
    mean: float
    power: float


def require_variance(problem: Problem, optimum: Optimum) -> None:
    """Refuse a weight with which gradients of points near a bound have an infinite variance.

    Args:
        problem: with points and weights.
        optimum: the estimates.

    Raises:
        ValueError: naming the bound and a weight that suits it.
    """
    part = next((part for part in problem.parts if part.view is unchanged), None)
    region = getattr(part and part.objective, "domain", None)
    if part is None or not isinstance(region, (Box, Domain, Simplex)):
        return
    x = part.x[problem.weights[part.rows] > 0]
    edges = _edges(region, x)
    near = [edge for edge in edges if edge.power < 2 * STEEPEST]
    rows = _rows(region, x)
    if needs_all_rows(problem.model.at(optimum.theta), part.x):
        rows = part.x
    for edge, alpha in zip(near, _growth(problem, optimum, rows, region, near)):
        if edge.power < 2 * alpha:
            raise _refusal(region, edge, alpha)


def _rows(region: Bounded, x: Tensor) -> Tensor:
    """The points that are moved: the first ones, or those nearest to the boundary of any set."""
    if not isinstance(region, Domain):
        return x[:ROWS]
    depth = region.depth(x)
    inside = (depth > 0).nonzero()[:, 0]
    return x[inside[depth[inside].argsort()[:ROWS]]]


def _edges(region: Bounded, x: Tensor) -> Iterator[Edge]:
    """The parts of the boundary where enough points are near."""
    if isinstance(region, Simplex):
        return _edges_of_simplex(x)
    return _edges_of_box(region, x) if isinstance(region, Box) else _edges_of_domain(region, x)


def _edges_of_box(box: Box, x: Tensor) -> Iterator[Edge]:
    """The finite bounds of points ``(N, *event)``, where enough of these are near."""
    flat = x.flatten(1)
    for sign, bounds in ((1.0, box.lower), (-1.0, box.upper)):
        each = torch.as_tensor(bounds, dtype=x.dtype).expand(flat.shape[1])
        for column in each.isfinite().nonzero()[:, 0].tolist():
            bound = float(each[column])
            place = f"the {'lower' if sign > 0 else 'upper'} bound of column {column}"
            move = partial(_at_bound, column, sign, bound)
            rounding = torch.finfo(x.dtype).eps * abs(bound)
            yield from _edge(place, move, sign * (flat[:, column] - bound), rounding)


def _edges_of_simplex(x: Tensor) -> Iterator[Edge]:
    """Proportions of zero, of points ``(N, *event)``."""
    for column, proportion in enumerate(x.flatten(1).T):
        yield from _edge(f"zero of column {column}", partial(_at_zero, column), proportion, 0.0)


def _edges_of_domain(domain: Domain, x: Tensor) -> Iterator[Edge]:
    """The boundary of any set, if enough points are near."""
    depth, rows = domain.depth(x), _rows(domain, x)
    moved = domain.depth(rows * (1 + 8 * torch.finfo(x.dtype).eps))
    rounding = (moved - domain.depth(rows)).abs().amax() / 8 if len(rows) else 0.0
    yield from _edge("the boundary", partial(_at_depth, domain), depth, float(rounding))


def _edge(
    place: str, move: Callable[[Tensor, float], Tensor], distance: Tensor, rounding: float
) -> Iterator[Edge]:
    """An edge, from distances ``(N,)`` and their rounding error; the power by Hill's estimate."""
    count = max(10, min(NEAREST, len(distance) // 10))
    near = distance[distance > 0].sort().values[: count + 1]
    if len(near) > count:
        power = count / float((near[-1] / near[:-1]).log().sum().clamp_min(1e-9))
        nearest = max(float(near[0]), 1e6 * rounding)
        yield Edge(place, move, nearest, float(distance.mean()), power * (1 + count**-0.5))


def _at_bound(column: int, sign: float, bound: float, x: Tensor, distance: float) -> Tensor:
    """Points at a distance from a bound of a column."""
    flat = x.flatten(1).clone()
    flat[:, column] = bound + sign * distance
    return flat.reshape(x.shape)


def _at_zero(column: int, x: Tensor, distance: float) -> Tensor:
    """Points whose proportion in a column is small; the others keep their ratios."""
    flat = x.flatten(1).clone()
    flat[:, column] = 0.0
    flat = flat * ((1 - distance) / flat.sum(1, keepdim=True))
    flat[:, column] = distance
    return flat.reshape(x.shape)


def _at_depth(domain: Domain, x: Tensor, depth: float) -> Tensor:
    """Points at a depth, by Newton steps along its slope; those that do not arrive stay."""
    moved = x
    for _ in range(NEWTON):
        found, slope = gradient(domain.depth, moved)
        length = slope.flatten(1).square().sum(1)
        step = torch.where(length > 0, (depth - found) / length, 0.0)
        moved = moved + slope * step.reshape(-1, *[1] * (x.ndim - 1))
    arrived = (domain.depth(moved) / depth - 1).abs() < 0.5
    return torch.where(arrived.reshape(-1, *[1] * (x.ndim - 1)), moved, x)


def _growth(
    problem: Problem, optimum: Optimum, rows: Tensor, region: Bounded, edges: list[Edge]
) -> list[float]:
    """alpha, the power of 1 / d by which gradients grow, for every edge."""
    if not edges:
        return []
    moved = [edge.move(rows, d) for edge in edges for d in (edge.nearest, STEP * edge.nearest)]
    own, gradients = problem.weights, optimum.derivatives.gradients
    # One combination of the parameters, each in units of its gradient, costs one pass for all.
    size = (own @ gradients.square()).sqrt()
    u = torch.randn(size.shape, generator=torch.Generator().manual_seed(0), dtype=size.dtype)
    u = torch.where(size > 0, u / size, 0.0)
    usual = (own @ (gradients @ u).square()).sqrt()
    together = moved if len(rows) > ROWS else [torch.cat(moved)]
    found = torch.cat([_along(problem.model, optimum.theta, u, x, region) for x in together])
    values = found.abs().reshape(len(edges), 2, -1)
    ratios = (values[:, 1] + usual) / (values[:, 0] + usual)
    return [math.log(ratio) / -math.log(STEP) for ratio in ratios.median(1).values.tolist()]


def _along(model: Parametric, theta: Tensor, u: Tensor, x: Tensor, region: Bounded) -> Tensor:
    """Gradients of exact score matching at points, along parameters u, ``(N,)``."""
    probes = Part(torch.arange(len(x)), x, ScoreMatching(domain=region))
    ones = torch.ones(len(x), dtype=x.dtype)
    return Problem(model, (probes,), ones).gradients_along(theta, u)


def _refusal(region: Bounded, edge: Edge, alpha: float) -> ValueError:
    """The error, with a weight that makes gradients bounded."""
    return ValueError(
        f"h must vanish faster at {edge.place}, got {region}, with which "
        f"gradients of the loss grow like d^-{alpha:.2g} at the distance d, where the score is "
        f"infinite, and points reach too near (the chance of less than d falls like "
        f"d^{edge.power:.2g}): standard errors do not exist; use h={_faster(region, edge, alpha)}"
    )


def _faster(region: Bounded, edge: Edge, alpha: float) -> str:
    """A weight with which gradients are bounded."""
    if isinstance(region, Simplex):
        return '"minsq"'
    distance = edge.nearest * torch.tensor([STEP, 1.0], dtype=torch.float64)
    low, high = weight_function(region.h)(distance).log().tolist()
    power = math.ceil(2 * ((high - low) / -math.log(STEP) + min(alpha, 1.0)) - 0.2) / 2
    return f'"min(x^{power:g}, {edge.mean**power:.2g})"'

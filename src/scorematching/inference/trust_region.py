"""Newton steps within a region that is trusted: slower than L-BFGS, and safer far from a minimum.

From a poor start, such as a scale of one for data in the thousands, L-BFGS takes the curvature of
the steepest parameter for that of all, and carries others to where the loss is flat.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching.inference.problem import Derivatives, Problem

MAX_STEPS = 100
SMALL = 1e-3
"""Length of a step from which ordinary Newton steps may go on."""

SMALLEST = 1e-6
"""Radius below which the loss does not fall any more."""

FLAT = 1e-10
"""Share of the largest curvature that every direction has at least."""


def descend(problem: Problem, theta: Tensor) -> tuple[Tensor, int]:
    """Parameters near a minimum if there is one, and the number of steps.

    Lengths are in units of what one point moves each parameter by: the size of its gradient over
    the curvature.

    Args:
        problem: what to minimise.
        theta: where to begin, with finite derivatives.
    """
    value, _ = problem.value_and_gradient(theta)
    found, radius, steps, near = problem.derivatives(theta), 1.0, 0, False
    units = _units(problem, found)
    while not near and radius > SMALLEST and steps < MAX_STEPS:
        step, expected = _step(found, units, radius)
        lower, _ = problem.value_and_gradient(theta + step)
        gain = float((value - lower) / expected)  # NaN is no gain
        if gain > 0:
            theta, value, found = theta + step, lower, problem.derivatives(theta + step)
            near = float((step / units).norm()) < min(SMALL, 0.9 * radius)
            if not found.hessian.isfinite().all():
                break
            units = torch.minimum(units, _units(problem, found))
        radius *= 2 if gain > 0.75 else 1 if gain > 0.25 else 0.25
        steps += 1
    return theta, steps


def _units(problem: Problem, found: Derivatives) -> Tensor:
    """What one point moves each parameter by, ``(P,)``."""
    sizes = (problem.weights @ found.gradients.square()).sqrt()
    curvatures = found.hessian.diagonal().abs()
    known = (sizes > 0) & (curvatures > 1e-100 * sizes.square())  # so that no product overflows
    return torch.where(known, sizes / curvatures, 1.0)


def _step(found: Derivatives, units: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """The best step of at most this length by the second derivatives, and by how much it lowers.

    Negative curvatures count as positive ones, so that steps leave a saddle downwards.
    """
    values, vectors = torch.linalg.eigh(units[:, None] * found.hessian * units)
    curvatures = values.abs().clamp_min(FLAT * float(values.abs().max()))
    along = vectors.T @ (units * found.gradient)
    more = _damping(along, curvatures, radius)
    moved = -along / (curvatures + more)
    expected = -(along @ moved + 0.5 * moved @ (curvatures * moved))
    return units * (vectors @ moved), expected


def _damping(along: Tensor, curvatures: Tensor, radius: float) -> float:
    """The least curvature to add to all with which a step has at most this length, by bisection."""
    low, high = 0.0, float(along.norm()) / radius
    if float((along / curvatures).norm()) <= radius:
        return 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        too_long = float((along / (curvatures + middle)).norm()) > radius
        low, high = (middle, high) if too_long else (low, middle)
    return high

"""The sandwich ``H^-1 K H^-1 / N``, and K split into data and directions.

The estimate solves ``mean_i psi(x_i, v_i; theta) = 0`` with psi the gradient of the loss of a
point. H is the mean derivative of psi, K the variance of psi. With independent directions
``K = Var E[psi | x] + E Var[psi | x]``: the first part is that of exact score matching, since the
directions average to it, and the second shrinks like 1/M for M independent directions per point.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._clusters import square_of_sums
from scorematching.errors import SingularInformationError
from scorematching.inference.optimise import solve
from scorematching.inference.problem import Derivatives, Problem

REDRAWS = 16
"""Draws of the directions that the split of K is measured with."""

CANCELLED = 0.01
"""Share of the gradients of points that is left of them in their mean, at a minimum, at most."""


class Split(NamedTuple):
    """K, by the source of the variance of the gradient of one point.

    Attributes:
        data: variance over points of the mean over directions, ``(P, P)``; of clusters N times the
            variance of their shares in the mean.
        directions: mean over points of the variance over directions, ``(P, P)``.
    """

    data: Tensor
    directions: Tensor


def meat(gradients: Tensor, weights: Tensor, groups: Tensor | None) -> Tensor:
    """``sum_i w_i^2 psi_i psi_i'``, or the same of sums within groups, ``(P, P)``: K / N."""
    rows = gradients * weights[:, None]
    if groups is None:
        return rows.T @ rows
    return square_of_sums(rows, groups)


def sandwich(derivatives: Derivatives, weights: Tensor, groups: Tensor | None) -> Tensor:
    """The covariance of the estimate, ``(P, P)``.

    Raises:
        SingularInformationError: if a variance is too large or too small for a number.
    """
    half = solve(derivatives.hessian, meat(derivatives.gradients, weights, groups))
    covariance = solve(derivatives.hessian, half.T)
    variances = covariance.diagonal()
    lost = (variances > 0) & (variances < torch.finfo(variances.dtype).tiny)
    if not bool(covariance.isfinite().all()) or bool(lost.any()):
        raise SingularInformationError(
            "variances of estimates must be numbers of double precision, got some beyond its "
            "range; divide the columns of X by their standard deviations, or write the model in "
            "larger or smaller units"
        )
    return 0.5 * (covariance + covariance.T)


@torch.inference_mode(False)
@torch.enable_grad()
def split(
    problem: Problem, theta: Tensor, groups: Tensor | None, generator: torch.Generator | None
) -> Split:
    """K in two parts, from repeated draws of the directions, which are independent in clusters."""
    scale = problem.num_points * problem.weights[:, None]
    total = square = torch.zeros(())
    for _ in range(REDRAWS):
        rows = scale * problem.redrawn(generator).gradients(theta)
        total, square = total + rows, square + rows.T @ rows
    mean = total / REDRAWS
    n, r = problem.num_points, REDRAWS
    within = (square - r * mean.T @ mean) / (n * (r - 1))
    both = n * meat(mean - mean.mean(0), torch.full((n,), 1 / n, dtype=mean.dtype), groups)
    return Split(both - within / r, within)


def require_variation(problem: Problem, found: Derivatives) -> None:
    """Refuse estimates at which every point's gradient in some parameter is zero.

    At a minimum gradients of points cancel. Where each of them is zero, what is left of them is the
    distance to the minimum: their mean is as large as they are.

    Args:
        problem: with the weights of the points.
        found: derivatives at the estimates.

    Raises:
        SingularInformationError: naming the parameters.
    """
    size = (problem.weights @ found.gradients.square()).sqrt()
    zero = found.gradient.abs() >= CANCELLED * size
    if bool(zero.any()):
        names = [name for name, is_zero in zip(problem.model.names, zero) if is_zero]
        raise SingularInformationError(
            "standard errors need gradients that vary over points, got gradients that are zero at "
            f"the estimates of {', '.join(names[:4])}: such a parameter lies on the boundary of "
            "what the model can express (as a in 1 + a^2 at zero), or all points are alike; fix "
            "it, or write the model in another way"
        )

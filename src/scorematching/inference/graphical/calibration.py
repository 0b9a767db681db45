"""The scale of the score-matching loss, compared with that of a log-likelihood.

A pair that is no edge improves n times the mean log-likelihood by half a chi-squared variable, and
n times the mean loss by ``J / (2 H)`` of one, where J is the variance of the loss's derivative in
K_ij and H its second derivative. Criteria such as BIC assume the former. So the loss is divided by
the mean of J / H over pairs, at the model without edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching.inference.graphical.kinds import Kind, Weight
from scorematching.inference.graphical.path import diagonal_solution
from scorematching.inference.graphical.quadratic import Quadratic


def loss_scale(z: Tensor, kind: Kind, weight: Weight, total: Quadratic, location: bool) -> float:
    """The mean of J / H over pairs.

    Args:
        z: points ``(n, D)``.
        kind: of the model.
        weight: h.
        total: coefficients of the loss at these points.
        location: whether eta is fitted.

    Example:
        For independent standard normal columns it is 2: J = Var(2 x_i x_j) = 4 and H = 2.

        >>> from scorematching.inference.graphical.kinds import KINDS
        >>> z = torch.randn(20000, 3, generator=torch.Generator().manual_seed(0)).double()
        >>> weight = Weight("x", 3.0)
        >>> total = Quadratic.of(z, KINDS["gaussian"], weight)
        >>> abs(loss_scale(z, KINDS["gaussian"], weight, total, location=True) - 2) < 0.1
        True
    """
    problem = total.problem(location)
    K = diagonal_solution(problem)
    J = _squared_gradients(z, kind, weight, K, total, location)
    dim = len(K)
    curvature = problem.gamma.expand(dim, dim, dim).diagonal(dim1=1, dim2=2)
    H = curvature + curvature.mT
    above = torch.triu_indices(dim, dim, offset=1)
    return (J / H)[above[0], above[1]].mean().item()


def _squared_gradients(
    z: Tensor, kind: Kind, weight: Weight, K: Tensor, total: Quadratic, location: bool
) -> Tensor:
    """Mean squares of the derivatives of the loss in each K_ij, eta adapted, ``(D, D)``.

    The derivative at a point is ``-(q_i y_j + c_ij r_i) - (q_j y_i + c_ji r_j)``, with q and r the
    factors of the derivatives in k_i and eta_i, and c the slope of the best eta_i in K_ij.
    """
    y = z**kind.a if kind.positive else z
    q, r = _factors(z, kind, weight, K, total.eta(K, location))
    c = total.cross / total.corner[:, None] if location else torch.zeros_like(K)
    own = (q**2).mT @ y**2 + 2 * c * ((q * r).mT @ y) + c**2 * (r**2).sum(0)[:, None]
    crossed = c * ((r * y).mT @ q)
    mixed = (q * y).mT @ (q * y) + crossed + crossed.mT + c * c.mT * (r.mT @ r)
    return (own + own.mT + 2 * mixed) / len(z)


def _factors(
    z: Tensor, kind: Kind, weight: Weight, K: Tensor, eta: Tensor
) -> tuple[Tensor, Tensor]:
    """Factors q and r: the derivatives of the loss are ``-q_j y_l`` in K_jl and r_j in eta_j."""
    s = kind.score(z, K, eta)
    if not kind.positive:
        return s, s
    h, slope = weight(z)
    parts = []
    for power in (kind.a, kind.b):
        factor = z ** (power - 1) * (h * s + slope)
        bend = (power - 1) * h * z ** (power - 2) if power != 1 else 0.0
        parts.append(factor + bend)
    return parts[0], parts[1]

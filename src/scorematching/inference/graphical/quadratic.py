"""The score-matching loss of an interaction model as a quadratic function of K and eta.

With s_j the j-th component of the score and h_j the weight, the loss of a point is
``sum_j (0.5 h_j s_j^2 + d(h_j s_j)/dx_j)``. Since s_j is linear in the row k_j of K and in eta_j,
the mean loss is a sum of one quadratic function for each node j::

    0.5 k_j' gamma_j k_j + eta_j cross_j.k_j + 0.5 corner_j eta_j^2 - g_j.k_j - g_eta_j eta_j
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching.inference.graphical.kinds import Kind, Weight


@dataclass(frozen=True, eq=False)
class Problem:
    """``sum_j 0.5 k_j' gamma_j k_j - g_j.k_j`` over symmetric K.

    Attributes:
        gamma: ``(D, D, D)``, or ``(1, D, D)`` where it is the same for all nodes.
        g: ``(D, D)``, one row per node.
    """

    gamma: Tensor
    g: Tensor

    def products(self, K: Tensor) -> Tensor:
        """``gamma_j k_j``, one row per node, ``(D, D)``."""
        if len(self.gamma) == 1:
            return K @ self.gamma[0]
        return torch.bmm(self.gamma, K[:, :, None])[:, :, 0]

    def gradient(self, K: Tensor) -> Tensor:
        """The gradient in the space of symmetric matrices, ``(D, D)``."""
        G = self.products(K) - self.g
        return (G + G.mT) / 2

    def value(self, K: Tensor) -> float:
        """The function itself."""
        return (K * (0.5 * self.products(K) - self.g)).sum().item()

    def with_multiplier(self, multiplier: float) -> Problem:
        """The problem with the diagonal of every gamma multiplied."""
        extra = (multiplier - 1) * self.gamma.diagonal(dim1=1, dim2=2)
        return Problem(self.gamma + torch.diag_embed(extra), self.g)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Sums over n points of the coefficients of the loss; see the module.

    Attributes:
        gamma: ``(D, D, D)``, or ``(1, D, D)`` where it is the same for all nodes.
        cross: ``(D, D)``.
        corner: ``(D,)``.
        g: ``(D, D)``.
        g_eta: ``(D,)``.
        count: n.
    """

    gamma: Tensor
    cross: Tensor
    corner: Tensor
    g: Tensor
    g_eta: Tensor
    count: int

    @classmethod
    def of(cls, x: Tensor, kind: Kind, weight: Weight) -> Quadratic:
        """The coefficients for points ``(n, D)``."""
        return _positive(x, kind, weight) if kind.positive else _gaussian(x)

    def minus(self, other: Quadratic) -> Quadratic:
        """The coefficients without those of some of the points."""
        return Quadratic(
            self.gamma - other.gamma,
            self.cross - other.cross,
            self.corner - other.corner,
            self.g - other.g,
            self.g_eta - other.g_eta,
            self.count - other.count,
        )

    def problem(self, location: bool) -> Problem:
        """The mean loss as a function of K: minimised over eta, or with eta = 0."""
        if not location:
            return Problem(self.gamma / self.count, self.g / self.count)
        cross = self.cross[: len(self.gamma)]
        ratio = cross / self.corner[: len(cross), None]
        gamma = self.gamma - cross[:, :, None] * ratio[:, None, :]
        g = self.g - (self.g_eta / self.corner)[:, None] * self.cross
        return Problem(gamma / self.count, g / self.count)

    def eta(self, K: Tensor, location: bool) -> Tensor:
        """The best eta for K, ``(D,)``."""
        if not location:
            return torch.zeros_like(self.g_eta)
        return (self.g_eta - (self.cross * K).sum(1)) / self.corner

    def loss(self, K: Tensor, eta: Tensor) -> float:
        """The mean loss."""
        of_K = Problem(self.gamma, self.g - eta[:, None] * self.cross).value(K)
        of_eta = (0.5 * self.corner * eta**2 - self.g_eta * eta).sum().item()
        return (of_K + of_eta) / self.count


def _gaussian(x: Tensor) -> Quadratic:
    """The score is ``eta - K x`` and the weight is one."""
    n, dim = x.shape
    ones = x.new_ones(dim)
    cross = -x.sum(0).expand(dim, dim)
    return Quadratic((x.mT @ x)[None], cross, n * ones, n * ones.diag(), 0 * ones, n)


def _positive(x: Tensor, kind: Kind, weight: Weight) -> Quadratic:
    """The derivatives of s_j are ``-x_j^(a-1) x^a`` in k_j and ``x_j^(b-1)`` in eta_j."""
    a, b = kind.a, kind.b
    h, slope = weight(x)
    y = x**a
    of_eta = x ** (b - 1)
    # d(h_j s_j)/dx_j, in k_j but for the term of k_jj, and in eta_j.
    along = slope * x ** (a - 1) + (a - 1) * h * x ** (a - 2) if a != 1 else slope
    g = along.mT @ y
    g.diagonal().add_((a * h * x ** (2 * a - 2)).sum(0))
    g_eta = -(slope * of_eta + (b - 1) * h * x ** (b - 2) if b != 1 else slope).sum(0)
    weights = h * x ** (2 * a - 2)
    gamma = torch.stack([(y * w[:, None]).mT @ y for w in weights.mT])
    cross = -(h * x ** (a - 1) * of_eta).mT @ y
    return Quadratic(gamma, cross, (h * of_eta**2).sum(0), g, g_eta, len(x))

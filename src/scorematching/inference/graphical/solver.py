"""The l1 problem over symmetric K: accelerated proximal steps on the pairs that matter.

Minimise ``sum_j (0.5 k_j' gamma_j k_j - g_j.k_j) + lam sum_{i != j} |K_ij|`` over symmetric K. With
G the gradient in the space of symmetric matrices, K is optimal if ``|G_ij| <= lam`` where K_ij = 0,
``G_ij = -lam sign(K_ij)`` elsewhere, and ``G_ii = 0``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching.inference.graphical.quadratic import Problem


class Pairs:
    """The problem restricted to some entries of K: all of the diagonal, and chosen pairs.

    Entries are a vector ``theta: (m,)``, the diagonal first. For nodes with different gamma, the
    blocks of gamma between the neighbours of each node are copied once, padded to the largest
    number of neighbours d, so that a product costs ``D d^2`` instead of ``D^3``; not so if d is
    more than half of D.

    Args:
        problem: the whole problem.
        mask: ``(D, D)``, symmetric; entries that may differ from zero.
    """

    def __init__(self, problem: Problem, mask: Tensor) -> None:
        """Collect the entries and their places."""
        dim = len(mask)
        upper = mask.triu(1).nonzero()
        diagonal = torch.arange(dim, device=mask.device)
        self.i = torch.cat([diagonal, upper[:, 0]])
        self.j = torch.cat([diagonal, upper[:, 1]])
        self.off_diagonal = self.i != self.j
        self.dim = dim
        mask = mask | torch.eye(dim, dtype=torch.bool, device=mask.device)
        width = int(mask.sum(1).max())
        if len(problem.gamma) == 1 or 2 * width > dim:
            self._columns = place = diagonal.expand(dim, dim)
            self._product: Callable[[Tensor], Tensor] = problem.products
        else:
            self._columns, place = _neighbours(mask, width)
            blocks = problem.gamma[
                diagonal[:, None, None], self._columns[:, :, None], self._columns[:, None, :]
            ]
            self._product = lambda K: torch.bmm(blocks, K[:, :, None])[:, :, 0]
        width = self._columns.shape[1]
        self._here = self.i * width + place[self.i, self.j]
        self._there = self.j * width + place[self.j, self.i]
        self._linear = self._both(problem.g.gather(1, self._columns))

    def take(self, K: Tensor) -> Tensor:
        """The entries of a symmetric matrix, ``(m,)``."""
        return K[self.i, self.j]

    def fill(self, theta: Tensor) -> Tensor:
        """The symmetric matrix with these entries, ``(D, D)``."""
        K = theta.new_zeros(self.dim, self.dim)
        K[self.i, self.j] = theta
        K[self.j, self.i] = theta
        return K

    def products(self, theta: Tensor) -> Tensor:
        """Entries of the symmetric part of ``gamma_j k_j``, ``(m,)``."""
        padded = theta.new_zeros(self._columns.shape).flatten()
        padded[self._here] = theta
        padded[self._there] = theta
        return self._both(self._product(padded.reshape(self._columns.shape)))

    def gradient(self, theta: Tensor) -> Tensor:
        """Entries of the gradient in the space of symmetric matrices, ``(m,)``."""
        return self.products(theta) - self._linear

    def _both(self, padded: Tensor) -> Tensor:
        """Means of the two places of each entry."""
        flat = padded.flatten()
        return (flat[self._here] + flat[self._there]) / 2


def _neighbours(mask: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Columns of the neighbours of each node, ``(D, d)``, and the place of each column in them."""
    order = mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return order[:, :width], order.argsort(dim=1)


class Control(NamedTuple):
    """When to stop: change of an entry, relative to the largest one, and number of steps."""

    tol: float
    max_iter: int


def proximal_descent(
    pairs: Pairs, theta: Tensor, lam: float, lipschitz: float, control: Control
) -> tuple[Tensor, int]:
    """Accelerated proximal gradient steps with restarts, from theta to the minimum.

    The momentum is set to zero where it points uphill (O'Donoghue and Candes, 2015).

    Returns:
        The minimum, and the number of steps; ``control.max_iter`` if it was not reached.
    """
    threshold = lam / lipschitz * pairs.off_diagonal
    y, t = theta, 1.0
    for step in range(control.max_iter):
        new = soft(y - pairs.gradient(y) / lipschitz, threshold)
        change = new - theta
        if bool(((y - new) * change).sum() > 0):
            t = 1.0
        following = (1 + (1 + 4 * t * t) ** 0.5) / 2
        moved = (new - y).abs().max()
        y, theta, t = new + (t - 1) / following * change, new, following
        if bool(moved <= control.tol * theta.abs().max()):
            return theta, step + 1
    return theta, control.max_iter


def soft(value: Tensor, threshold: Tensor) -> Tensor:
    """Soft thresholding, ``sign(v) max(|v| - threshold, 0)``."""
    return value.sign() * (value.abs() - threshold).clamp(min=0)


def largest_curvature(problem: Problem) -> float:
    """The largest eigenvalue of all gamma, which bounds the curvature of the problem."""
    return torch.linalg.eigvalsh(problem.gamma)[:, -1].max().item()


def conjugate_gradients(pairs: Pairs, theta: Tensor, control: Control) -> Tensor | None:
    """The minimum without a penalty over the chosen entries; None if it is not reached."""
    # Entries off the diagonal stand for two, so that the operator is symmetric in theta.
    weight = 1.0 + pairs.off_diagonal.to(theta)
    r = -weight * pairs.gradient(theta)
    scale = (weight * pairs._linear).abs().max().clamp(min=1e-300)
    p, rr = r, r @ r
    for _ in range(control.max_iter):
        if bool(r.abs().max() <= control.tol * scale):
            return theta
        Hp = weight * pairs.products(p)
        curvature = p @ Hp
        if bool(curvature <= 0):
            return None
        theta = theta + rr / curvature * p
        r = r - rr / curvature * Hp
        before, rr = rr, r @ r
        p = r + rr / before * p
    return None

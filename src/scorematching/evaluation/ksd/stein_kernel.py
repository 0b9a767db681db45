"""The Stein kernel of a score, and sums over its matrix in limited memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._memory import Budget, Chunks, joined, sum_of_chunks
from scorematching.evaluation.scores import scores_at
from scorematching.kernels import Kernel, kernel_for, squared_distances
from scorematching.kernels.distances import difference_products

_MAX_ENTRIES = 2**21
"""Entries of one block of the matrix: 16 MB, and about ten such blocks are in use at a time."""


@dataclass(frozen=True, eq=False)
class SteinKernel:
    """The kernel whose mean over the model is zero, at N points.

    With k the kernel, s the score, ``t = |x - y|^2 / h^2``, ``k = phi(t)`` and ``d = x - y``::

        u(x, y) = s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + tr grad_x grad_y k
                = s(x).s(y) phi + 2 phi' d.(s(y) - s(x)) / h^2 - (4 t phi'' + 2 D phi') / h^2

    ``E u(x, y) = 0`` for every y if x is drawn from the model, whatever its normalising constant.

    Attributes:
        x: points ``(N, D)``, in double precision.
        s: scores at them, ``(N, D)``.
        kernel: k.
        budget: of memory; None is for blocks of 16 MB, about ten at a time.

    Reference: Liu, Lee and Jordan (2016), Theorem 3.6; Chwialkowski, Strathmann and Gretton (2016).

    Example:
        >>> x = torch.tensor([[0.0], [2.0]])
        >>> u = SteinKernel.of(lambda x: -x, x, kernel="rbf", bandwidth=1.0).matrix()
        >>> torch.equal(u.diagonal(), torch.tensor([1.0, 5.0], dtype=torch.float64))
        True
    """

    x: Tensor
    s: Tensor
    kernel: Kernel
    budget: Budget | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        x: Tensor,
        kernel: str = "imq",
        bandwidth: float | None = None,
        budget: Budget | None = None,
    ) -> SteinKernel:
        """The Stein kernel at points ``(N, *event)`` of a model that `scores_at` accepts.

        The bandwidth None is the median distance between the points.
        """
        s = scores_at(model, x, budget).double()
        points = x.detach().flatten(1).double()
        return cls(points, s, kernel_for(points, kernel, bandwidth, budget=budget), budget)

    def __len__(self) -> int:
        return len(self.x)

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """``u(x_i, x_j)`` for some rows i and columns j."""
        x, y, s, r = self.x[rows], self.x[columns], self.s[rows], self.s[columns]
        h2 = self.kernel.bandwidth**2
        t = squared_distances(x, y).clamp_(min=0) / h2
        phi, slope, bend = (self.kernel.profile(t, order) for order in range(3))
        along = difference_products(x, y, r) + difference_products(y, x, s).mT
        trace = 4 * t * bend + 2 * x.shape[-1] * slope
        return (s @ r.mT) * phi + (2 * slope * along - trace) / h2

    def matrix(self) -> Tensor:
        """All of it, ``(N, N)``."""
        rows = torch.arange(len(self))
        return joined(self._chunks(), lambda part: self.block(part, slice(None)), [rows])

    def diagonal(self) -> Tensor:
        """``u(x_i, x_i) = |s_i|^2 phi(0) - 2 D phi'(0) / h^2``, ``(N,)``."""
        phi, slope = (self.kernel.profile(self.s.new_zeros(()), order) for order in range(2))
        trace = 2 * self.x.shape[1] * slope / self.kernel.bandwidth**2
        return self.s.square().sum(1) * phi - trace

    def quadratic_forms(self, weights: Tensor) -> Tensor:
        """``sum_ij w_i w_j u(x_i, x_j)`` for B vectors of weights, ``(B, N) -> (B,)``.

        The matrix is built once, above its diagonal, in blocks that share one product with all
        weights, which may be integers: 20,000 points and 499 vectors of weights need about 1 GB.
        """
        most = None if self.budget is None else self.budget.left // (16 * len(self))
        size = len(weights) if most is None else min(len(weights), max(1, most))

        def forms(rows: Tensor) -> Tensor:
            start, stop = int(rows[0]), int(rows[-1]) + 1
            block = self.block(slice(start, stop), slice(start, None))
            block[:, stop - start :] *= 2
            return torch.cat([_forms(block, part[:, start:]) for part in weights.split(size)])

        return sum_of_chunks(self._chunks(), forms, torch.arange(len(self)))

    def statistics(self, weights: Tensor | None = None) -> Tensor:
        """``sum_{i != j} w_i w_j u_ij / (N (N - 1))`` for signs w, ``(B, N) -> (B,)``.

        Weights None stands for one vector of ones: the U-statistic.
        """
        n = len(self)
        signs = self.x.new_ones(1, n) if weights is None else weights
        return (self.quadratic_forms(signs) - self.diagonal().sum()) / (n * (n - 1))

    def _chunks(self) -> Chunks:
        """Rows of the matrix, some at a time."""
        return Chunks(max(1, _MAX_ENTRIES // len(self)), self.budget)


def _forms(block: Tensor, weights: Tensor) -> Tensor:
    """``sum_ij w_i w_j u_ij`` over a block that begins at the diagonal, ``(B, N) -> (B,)``."""
    w = weights.to(block.dtype)
    return ((block @ w.mT) * w[:, : len(block)].mT).sum(0)

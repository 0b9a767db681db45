"""Kernel density estimates: a normal window on every training point."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from scorematching._memory import current_budget, in_chunks
from scorematching.distributions import Distribution
from scorematching.estimators.density.selection import far_outside

_MAX_CENTRES = 5000
_CHUNK_ENTRIES = 2**22
_MAX_QUERIES = 500


class KernelDensity(Distribution):
    """``p(x) = mean_i N(x; c_i, h^2 I)``.

    Args:
        centres: c, points ``(N, D)``.
        bandwidth: h.

    Example:
        >>> p = KernelDensity(torch.zeros(3, 1), bandwidth=1.0)
        >>> round(p(torch.zeros(1, 1)).item(), 4)  # -log sqrt(2 pi)
        -0.9189
    """

    def __init__(self, centres: Tensor, bandwidth: float) -> None:
        super().__init__(centres.shape[1], like=centres)
        self.centres, self.bandwidth = centres, bandwidth

    def _log_density(self, x: Tensor) -> Tensor:
        sums = self._in_chunks(lambda part: self._log_kernels(part).logsumexp(-1), x)
        log_constant = self.dim * math.log((2 * math.pi) ** 0.5 * self.bandwidth)
        return sums - math.log(len(self.centres)) - log_constant

    def _score(self, x: Tensor) -> Tensor:
        means = self._in_chunks(lambda part: self._log_kernels(part).softmax(-1) @ self.centres, x)
        return (means - x) / self.bandwidth**2

    def _in_chunks(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        rows = max(1, _CHUNK_ENTRIES // len(self.centres))
        return in_chunks(function, [x], rows, current_budget())

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        rows = torch.randint(len(self.centres), (n,), generator=generator, device=self.device)
        return self.centres[rows] + self.bandwidth * self._normal((n, self.dim), generator)

    def _log_kernels(self, x: Tensor) -> Tensor:
        """Log of each kernel without its constant, ``(N, number of centres)``."""
        a, b = x, self.centres
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1) - 2 * a @ b.mT
        # Far out distances are rounding errors of either sign. Derivatives stay as they are.
        squares = squares - squares.detach().clamp(max=0)
        return -0.5 / self.bandwidth**2 * squares


def fit_kde(x: Tensor, generator: torch.Generator | None = None) -> KernelDensity:
    """A kernel density estimate, with the bandwidth of largest leave-one-out likelihood.

    Copies of a point are left out together, and points far outside, such as wrong values, do not
    count.

    Args:
        x: points ``(N, D)``; of more than 5,000, as many are drawn at random.
        generator: source of randomness; None is torch's default generator.

    Example:
        >>> fit_kde(torch.linspace(0, 1, 9).double()[:, None]).bandwidth < 0.5
        True
    """
    order = torch.randperm(len(x), generator=generator, device=x.device)
    centres = x[order[:_MAX_CENTRES]]
    return KernelDensity(centres, _bandwidth(centres))


def _bandwidth(centres: Tensor) -> float:
    """Silverman's bandwidth times the factor of largest leave-one-out likelihood."""
    n, d = centres.shape
    silverman = (4 / ((d + 2) * n)) ** (1 / (d + 4))
    queries = centres[:_MAX_QUERIES]
    squares = torch.cdist(queries, centres).square()
    which = centres.unique(dim=0, return_inverse=True)[1]
    squares[which[: len(queries), None] == which] = math.inf

    bandwidths = [silverman * 2 ** (step / 3) for step in range(-12, 7)]
    values = [(-0.5 * squares / h**2).logsumexp(1) - d * math.log(h) for h in bandwidths]
    likelihoods = torch.stack(values)
    means = likelihoods[:, ~far_outside(likelihoods)].mean(1)
    return bandwidths[int(means.argmax())]

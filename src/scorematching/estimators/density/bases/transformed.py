"""A distribution seen through an invertible map."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scorematching.datasets import Transform
from scorematching.distributions import Distribution


class Transformed(Distribution):
    """The distribution of x where ``z = T(x)`` has a given distribution.

    ``log p(x) = log q(T(x)) + log |det dT/dx|``.

    Args:
        inner: q, a normalised distribution of z.
        transform: T.

    Example:
        >>> from scorematching.datasets import Standardise
        >>> from scorematching.distributions import Gaussian
        >>> double = Standardise(torch.zeros(1), torch.full((1,), 0.5))
        >>> p = Transformed(Gaussian([0.0], [[1.0]]), double)  # N(0, 1/4)
        >>> torch.allclose(p(torch.ones(1, 1)), Gaussian([0.0], [[0.25]])(torch.ones(1, 1)))
        True
    """

    def __init__(self, inner: Distribution, transform: Transform) -> None:
        super().__init__(inner.dim, like=inner._like)
        self.inner, self.transform = inner, transform

    def _log_density(self, x: Tensor) -> Tensor:
        return self.inner._log_density(self.transform(x)) + self.transform.log_abs_det(x)

    def _score(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            inner = self.inner._score(self.transform(x))  # which need not come from a graph

        def changes_alike(x: Tensor) -> Tensor:
            return (inner * self.transform(x)).sum(-1) + self.transform.log_abs_det(x)

        return score_by_autograd(changes_alike, x)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        return self.transform.inverse(self.inner.sample(n, generator))


def score_by_autograd(log_density: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of a log-density whose rows do not depend on each other, ``(N, D)``."""
    with torch.enable_grad():
        points = x.detach().requires_grad_()
        (score,) = torch.autograd.grad(log_density(points).sum(), points)
    return score

"""A base with a tilt as one distribution, and its samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scorematching._random import uniform
from scorematching.datasets import Transform
from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.transformed import score_by_autograd
from scorematching.estimators.density.normaliser import Normaliser
from scorematching.types import Vector

_POOL, _MAX_ROUNDS, _BATCH = 4096, 200, 8192


class Tilted(Distribution):
    """``log p(x) = log q0(x) + a t(T(x)) - log Z``.

    Args:
        base: q0.
        tilt: t, ``(N, D) -> (N,)``, of whitened points.
        whiten: T.
        size: a.

    Attributes:
        normaliser: the estimate of log Z; zero until it is set.
    """

    def __init__(
        self,
        base: Distribution,
        tilt: Callable[[Tensor], Tensor],
        whiten: Transform,
        size: float,
    ) -> None:
        super().__init__(base.dim, like=base._like)
        self.base, self.tilt, self.whiten, self.size = base, tilt, whiten, size
        self.normaliser = Normaliser.exact()

    def tilt_at(self, x: Tensor) -> Tensor:
        """``a t(T(x))``, ``(N, D) -> (N,)``."""
        return self.size * self.tilt(self.whiten(x))

    def _log_density(self, x: Tensor) -> Tensor:
        return self.base._log_density(x) + self.tilt_at(x) - self.normaliser.log_z

    def _score(self, x: Tensor) -> Tensor:
        return self.base._score(x) + score_by_autograd(self.tilt_at, x)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        return sample_tilted(self.tilt_at, self.base, n, generator)


@torch.no_grad()
def sample_tilted(
    tilt: Vector, base: Distribution, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """Points of ``q0 exp(t) / Z``, by rejection: a sample of the base stays with ``exp(t - max)``.

    The largest tilt is that of a pool of samples of the base and all drawn so far. Where fewer than
    one in a few hundred stays, the rest is drawn from the samples in proportion to ``exp(t)``. The
    tilt ``(N, D) -> (N,)`` must be bounded.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> g = torch.Generator().manual_seed(0)
        >>> half = lambda x: torch.where(x[:, 0] > 0, 0.0, -torch.inf)
        >>> bool((sample_tilted(half, Gaussian([0.0], [[1.0]]), 50, g) > 0).all())
        True
    """
    pool = base.sample(_POOL, generator)
    values = tilt(pool)
    largest = values.max()
    found, count = [], 0
    for _ in range(_MAX_ROUNDS * -(-n // _BATCH)):
        kept = pool[uniform(pool.shape[:1], pool, generator).log() < values - largest]
        found.append(kept)
        count += len(kept)
        if count >= n:
            return torch.cat(found)[:n]
        pool = base.sample(min(_BATCH, max(_POOL, n)), generator)
        values = tilt(pool)
        largest = torch.maximum(largest, values.max())
    rows = torch.multinomial(values.softmax(0), n - count, replacement=True, generator=generator)
    return torch.cat([*found, pool[rows]])

"""A base with a tilt as one distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scorematching.datasets import Transform
from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.transformed import score_by_autograd
from scorematching.estimators.density.normaliser import Normaliser
from scorematching.estimators.density.sampling import sample_tilted


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

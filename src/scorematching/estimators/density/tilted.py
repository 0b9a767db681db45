"""A base with a tilt as one distribution, and its samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from scorematching._random import uniform
from scorematching.datasets import Transform
from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.transformed import score_by_autograd
from scorematching.estimators.density.nearby import less_nearby, with_nearby
from scorematching.estimators.density.normaliser import Normaliser
from scorematching.types import Vector

_POOL, _MAX_ROUNDS, _BATCH, _KEPT = 4096, 200, 8192, 16

_MIN_EFFECTIVE = 100.0
"""Least effective sample size of the last samples of the base that others are drawn from."""


class Tilted(Distribution):
    """``log p(x) = log q0(x) + a t(T(x)) - log Z``.

    Args:
        base: q0.
        tilt: t, ``(N, D) -> (N,)``, of whitened points.
        whiten: T.
        size: a.
        nearby: where the density may lie beside the base, for a tilt that is not bounded.

    Attributes:
        normaliser: the estimate of log Z; zero until it is set.
    """

    nearby: Distribution | None = None

    def __init__(
        self,
        base: Distribution,
        tilt: Callable[[Tensor], Tensor],
        whiten: Transform,
        size: float,
        nearby: Distribution | None = None,
    ) -> None:
        super().__init__(base.dim, like=base._like)
        self.base, self.tilt, self.whiten, self.size = base, tilt, whiten, size
        self.nearby = nearby
        self.normaliser = Normaliser.exact()

    @property
    def proposal(self) -> Distribution:
        """What is drawn from, in order to integrate or sample the density."""
        return with_nearby(self.base, self.nearby)

    def log_weight(self, x: Tensor) -> Tensor:
        """Log of the density without 1 / Z over that of the proposal, ``(N, D) -> (N,)``."""
        return self.tilt_at(x) + less_nearby(self.base, self.nearby, x)

    def tilt_at(self, x: Tensor) -> Tensor:
        """``a t(T(x))``, ``(N, D) -> (N,)``."""
        return self.size * self.tilt(self.whiten(x))

    def _log_density(self, x: Tensor) -> Tensor:
        return self.base._log_density(x) + self.tilt_at(x) - self.normaliser.log_z

    def _score(self, x: Tensor) -> Tensor:
        return self.base._score(x) + score_by_autograd(self.tilt_at, x)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        return sample_tilted(self.log_weight, self.proposal, n, generator)


@torch.no_grad()
def sample_tilted(
    tilt: Vector, base: Distribution, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """Points of ``q0 exp(t) / Z``, by rejection: a sample of the base stays with ``exp(t - max)``.

    The largest tilt is that of all samples drawn so far; where it rises, those that stayed before
    stay with the quotient of both chances. Where fewer than one in a few hundred stays, the rest is
    drawn from the last samples of the base in proportion to ``exp(t)``. The tilt ``(N, D) -> (N,)``
    must be bounded.

    Raises:
        ValueError: if the tilt leaves hardly any samples of the base.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> g = torch.Generator().manual_seed(0)
        >>> half = lambda x: torch.where(x[:, 0] > 0, 0.0, -torch.inf)
        >>> bool((sample_tilted(half, Gaussian([0.0], [[1.0]]), 50, g) > 0).all())
        True
    """
    drawn: deque[tuple[Tensor, Tensor]] = deque(maxlen=_KEPT)
    kept, largest, size = base._like.new_empty(0, base.dim), -torch.inf, _POOL
    for _ in range(_MAX_ROUNDS * -(-n // _BATCH)):
        pool = base.sample(size, generator)
        values = tilt(pool)
        drawn.append((pool, values))
        before, largest = largest, max(largest, values.max().item())
        if largest > before:
            kept = _thinned(kept, values.new_full((len(kept),), before - largest), generator)
        kept = torch.cat([kept, _thinned(pool, values - largest, generator)])
        if len(kept) >= n:
            return kept[:n]
        size = min(_BATCH, max(_POOL, n))
    pool, values = (torch.cat(parts) for parts in zip(*drawn))
    weights = values.softmax(0)
    _check_effective(1 / weights.square().sum().item(), len(pool))
    rows = torch.multinomial(weights, n - len(kept), replacement=True, generator=generator)
    return torch.cat([kept, pool[rows]])


def _thinned(x: Tensor, log_chance: Tensor, generator: torch.Generator | None) -> Tensor:
    """Points that stay with given chances."""
    return x[uniform(x.shape[:1], x, generator).log() < log_chance]


def _check_effective(effective: float, drawn: int) -> None:
    """Refuse to draw many copies of few points."""
    if effective < _MIN_EFFECTIVE:
        raise ValueError(
            "density_ must be near its base to be sampled, got an effective sample size of "
            f"{effective:.3g} in {drawn} samples of the base; use calibrate=True or model="
            '"none", or chains: scorematching.samplers.hmc, scorematching sample --method hmc'
        )

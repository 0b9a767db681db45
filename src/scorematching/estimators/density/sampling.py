"""Samples of a tilted base."""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching._random import uniform
from scorematching.distributions import Distribution
from scorematching.types import Vector

_POOL, _MAX_ROUNDS, _BATCH = 4096, 200, 8192


@torch.no_grad()
def sample_tilted(
    tilt: Vector, base: Distribution, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """Points of ``q0 exp(t) / Z``, by rejection: a sample of the base stays with ``exp(t - max)``.

    The largest tilt is that of a pool of samples of the base and all drawn so far. Where fewer than
    one in a few hundred stays, the rest is drawn from the samples in proportion to ``exp(t)``.

    Args:
        tilt: t, ``(N, D) -> (N,)``, bounded.
        base: q0.
        n: number of points.
        generator: source of randomness; None is torch's default generator.

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

"""Where a density may lie that its base hardly has: near the points it was fitted to, or far out.

A kernel tilt is not bounded. Where the base has no sample, it may add a peak of any mass, often at
a few points that lie in the tails of the base. Samples of the base alone miss it: estimates of
log Z were too small by as much as 20, with a standard error of 0.02.

A network tilt is bounded by exp(10), which it may reach where there are no points. Of a base with
heavy tails 1e-5 may lie there, which ten thousand samples miss, and which the tilt makes a half.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.datasets import Transform
from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.kde import KernelDensity
from scorematching.estimators.density.bases.student_t import MultivariateT
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.stacking import Stack

_CENTRES = 1000
_WIDTHS = (0.25, 1.0)
"""Standard deviations of the windows in whitened units: a peak on points, and one beside them."""

_FAR = (1.0, 30.0, 1000.0)
"""Widths of the Cauchy distributions in whitened units, from the points to any tail."""


def near_points(x: Tensor, whiten: Transform) -> Distribution:
    """Normal windows about points ``(N, D)``, narrow and wide ones, of the shape of all points."""
    centres = whiten(some_rows(x, _CENTRES))
    parts = [Transformed(KernelDensity(centres, width), whiten) for width in _WIDTHS]
    return _mixture(parts)


def far_out(whiten: Transform, dim: int, like: Tensor) -> Distribution:
    """Cauchy distributions of several widths in whitened units, which cover any tail."""
    eye, zero = torch.eye(dim).to(like), like.new_zeros(dim)
    cauchys = [MultivariateT(zero, width**2 * eye, df=1) for width in _FAR]
    return Transformed(_mixture(cauchys), whiten)


def with_nearby(base: Distribution, nearby: Distribution | None) -> Distribution:
    """A base, or the mixture of both in equal parts."""
    return base if nearby is None else _mixture([base, nearby])


def less_nearby(base: Distribution, nearby: Distribution | None, x: Tensor) -> Tensor:
    """Log of the density of a base over that of the mixture, ``(N, D) -> (N,)``."""
    if nearby is None:
        return x.new_zeros(len(x))
    return base._log_density(x) - _mixture([base, nearby])._log_density(x)


def _mixture(parts: Sequence[Distribution]) -> Stack:
    return Stack(parts, torch.full((len(parts),), 1 / len(parts)))

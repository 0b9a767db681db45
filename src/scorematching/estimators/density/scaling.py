"""Scales of the columns of a table, and whitening, both little affected by outliers."""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.datasets import Standardise, Transform, Whiten
from scorematching.estimators.density.bases.gaussian import shrinkage, shrunk

_WIDE, _NORMAL_IQR, _MAX_QUANTILE_POINTS = 6.0, 1.349, 100_000
_FEW_POINTS, _FLOOR = 3, 1e-9


def robust_standardise(x: Tensor) -> Standardise:
    """Mean and standard deviation of points whose outliers are moved inward.

    Values further from the median than six times the scale of the middle half are moved to that
    distance first, so that a single wrong value does not decide the scale of a column. None of the
    columns of ``x: (N, D)`` may be constant.

    Example:
        >>> x = torch.cat([torch.randn(99, 1), torch.full((1, 1), 1e6)]).double()
        >>> robust_standardise(x).std.item() < 2
        True
    """
    rows = some_rows(x, _MAX_QUANTILE_POINTS)
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype, device=x.device)
    low, median, high = rows.quantile(levels, dim=0)
    plain = x.std(0, correction=0)
    scale = torch.where(high > low, (high - low) / _NORMAL_IQR, plain)
    clipped = x.clamp(median - _WIDE * scale, median + _WIDE * scale)
    std = clipped.std(0, correction=0)
    return Standardise(clipped.mean(0), torch.where(std > 0, std, plain))


def robust_whiten(x: Tensor) -> Whiten:
    """A symmetric whitening of standardised points; outliers moved inward, few points shrunk.

    It is of full rank for any number of points ``(N, D)``.

    Example:
        >>> robust_whiten(torch.randn(3, 5).double()).std.min().item() > 0
        True
    """
    clipped = x.clamp(-_WIDE, _WIDE)
    mean = clipped.mean(0)
    centred = clipped - mean
    share = shrinkage(clipped) if len(x) < _FEW_POINTS * x.shape[1] else 0.0
    values, vectors = torch.linalg.eigh(shrunk(centred.mT @ centred / len(x), share))
    return Whiten(mean, vectors, values.clamp(min=_FLOOR).sqrt(), symmetric=True)


class Inverse(Transform):
    """The inverse of an affine transform.

    Args:
        transform: T, whose log-determinant is the same at every point.

    Example:
        >>> half = Inverse(Standardise(torch.zeros(1), torch.full((1,), 0.5)))
        >>> half(torch.ones(1, 1)).item()
        0.5
    """

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        """``T^-1(x)``."""
        return self.transform.inverse(x)

    def inverse(self, z: Tensor) -> Tensor:
        """``T(z)``."""
        return self.transform(z)

    def log_abs_det(self, x: Tensor) -> Tensor:
        """Minus that of T."""
        return -self.transform.log_abs_det(x)

"""Importance weights as logarithms: their mean, its standard error, the effective sample size.

For weights w with mean Z::

    log Z = log mean(w),   ESS = sum(w)^2 / sum(w^2),   standard error^2 = (n / ESS - 1) / (n - 1)

the last by the delta method, ``sd(w) / (mean(w) sqrt(n))``. ``E[log Z]`` lies below the truth by
about half the squared standard error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_log_density
from scorematching.types import LogDensity


class LogSums(NamedTuple):
    """Running sums over weights, as logarithms.

    Attributes:
        first: ``log sum w``, ``(*groups)``.
        second: ``log sum w^2``, ``(*groups)``.
        num: number of weights in each group.
    """

    first: Tensor
    second: Tensor
    num: int

    @classmethod
    def of(cls, log_weights: Tensor) -> LogSums:
        """The sums over the first axis of checked weights ``(n, *groups)``, in double precision."""
        check_log_weights(log_weights)
        w = log_weights.double()
        return cls(w.logsumexp(0), (2 * w).logsumexp(0), len(w))

    def merge(self, other: LogSums) -> LogSums:
        """The sums over both sets of weights."""
        first, second = self.first.logaddexp(other.first), self.second.logaddexp(other.second)
        return LogSums(first, second, self.num + other.num)

    @property
    def log_mean(self) -> Tensor:
        """``log mean w``, ``(*groups)``."""
        return self.first - math.log(self.num)

    @property
    def standard_error(self) -> Tensor:
        """Of the log mean, ``(*groups)``; NaN for one weight, infinite where all are zero."""
        if self.num == 1:
            return torch.full_like(self.first, math.nan)
        error = (self._spread() / (self.num - 1)).sqrt()
        return torch.where(self.first == -math.inf, math.inf, error)

    @property
    def effective_sample_size(self) -> Tensor:
        """Number of equal weights with the same precision, ``(*groups)``."""
        return torch.where(self.first == -math.inf, 0.0, self.num / (1 + self._spread()))

    def _spread(self) -> Tensor:
        """``n / ESS - 1``, the squared coefficient of variation."""
        spread = self.num / torch.exp(2 * self.first - self.second) - 1
        # For equal weights this is rounding error.
        rounding = 64 * torch.finfo(torch.float64).eps * self.second.abs().clamp(min=1)
        return torch.where(spread < rounding, 0.0, spread)


def log_densities(log_density: LogDensity, x: Tensor) -> Tensor:
    """Log-densities of points in double precision, ``(N,)``; checks their shape."""
    values = log_density(x.clone())  # it may change its points in place
    check_log_density(values, x, feature_axes=0)
    return values.double()


def check_log_weights(log_weights: Tensor) -> None:
    """Require one number or minus infinity for each sample, ``(n, *groups)``."""
    if log_weights.ndim == 0 or log_weights.numel() == 0:
        raise ValueError(
            f"log_weights must have shape (n,) with n >= 1, got {tuple(log_weights.shape)}; "
            "pass one number per sample"
        )
    bad = log_weights.isnan() | (log_weights == math.inf)
    if bool(bad.any()):
        raise ValueError(
            f"log_density must be a number or minus infinity, got NaN or infinity at "
            f"{int(bad.sum())} of {log_weights.numel()} samples; check it far from the data"
        )

"""A mean over points with its standard error, and that of paired differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from scorematching._checks import check_type
from scorematching._clusters import square_of_sums


@dataclass(frozen=True)
class Estimate:
    """A mean over points, with its standard error.

    Attributes:
        mean: the average.
        standard_error: the standard deviation of one point over sqrt(N); NaN for one point.
        count: N, the number of points.

    Example:
        >>> import torch
        >>> print(Estimate(mean=-3.2142, standard_error=0.0419, count=159))
        -3.21 +- 0.04 (n=159)
        >>> Estimate.of(torch.tensor([1.0, 3.0]))
        Estimate(mean=2.0, standard_error=1.0, count=2)
    """

    mean: float
    standard_error: float
    count: int

    @staticmethod
    def of(values: Tensor, groups: Tensor | None = None) -> Estimate:
        """The mean of values ``(N,)``, independent ones or those of numbered clusters ``(N,)``."""
        _check_values(values, "values")
        # In double precision, because sums of many float32 losses lose digits.
        values = values.detach().double()
        if groups is not None:
            shares = (values - values.mean())[:, None] / len(values)
            error = square_of_sums(shares, groups).item() ** 0.5
            return Estimate(values.mean().item(), error, len(values))
        deviation = values.std().item() if len(values) > 1 else math.nan
        return Estimate(values.mean().item(), deviation / len(values) ** 0.5, len(values))

    def __str__(self) -> str:
        """Mean and standard error, to the digits that the standard error supports."""
        places = _decimals(self.standard_error)
        return f"{self.mean:.{places}f} +- {self.standard_error:.{places}f} (n={self.count})"


def paired_difference(a_losses: Tensor, b_losses: Tensor) -> Estimate:
    """Mean of ``a - b`` over the same points: negative if model a is better.

    The standard error of the paired differences is usually far smaller than those of the means.

    Args:
        a_losses: losses of model a, ``(N,)``.
        b_losses: losses of model b at the same points, ``(N,)``.

    Example:
        >>> import torch
        >>> print(paired_difference(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 7.0])))
        -1.5 +- 0.5 (n=2)
    """
    _check_values(a_losses, "a_losses")
    _check_values(b_losses, "b_losses")
    if len(a_losses) != len(b_losses):
        raise ValueError(
            f"b_losses must belong to the same points as a_losses ({len(a_losses)} of them), got "
            f"{len(b_losses)}; evaluate both models on the same held-out points"
        )
    return Estimate.of(a_losses.detach().double() - b_losses.detach().double())


def _decimals(standard_error: float) -> int:
    """Decimals to print: one significant digit of the error, two if it begins with 1, 2 or 3."""
    if not (math.isfinite(standard_error) and standard_error > 0):
        return 4
    exponent = math.floor(math.log10(standard_error))
    return max(0, -exponent + (standard_error / 10**exponent < 3.5))


def _check_values(values: Any, name: str) -> None:
    wanted = f"{name} must be a torch.Tensor of shape (N,)"
    check_type(values, Tensor, wanted, "convert it with torch.as_tensor")
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(
            f"{name} must have shape (N,) with N >= 1, got {tuple(values.shape)}; "
            "pass one number per point"
        )

"""Noise that fills the gaps between tied values, which have no density."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scorematching._random import uniform
from scorematching._rows import some_rows
from scorematching.datasets import Dequantise

_MIN_SHARE, _MIN_RATIO, _MIN_OTHERS, _MIN_GAPS = 0.01, 10, 10, 5
"""Of a value that is no rounding: least share of the rows, least multiple of the rows that other
values have, least number of other values, and least width of their kernel in half gaps."""

_CODE_ROWS, _CODE_GAP, _MAX_CODES = 3, 2.0, 3
"""Of a code, such as -999: least number of rows, least gap to the other values in widths of their
middle half, and most codes to either side."""

_MAX_ROWS = 100_000
"""For quantiles."""


@dataclass(frozen=True)
class Gaps:
    """Uniform noise over the gaps between the values of rounded and discrete columns.

    Values that are tied have no density: the narrower the peaks on them, the larger likelihood and
    score become. With noise u as wide as the gap g this ends, since by Jensen's inequality
    ``E log p(x + u) <= log P(x - g/2 < X < x + g/2) - log g``, whatever p is.

    A value that many rows share in a column of otherwise different values, such as the zero of a
    day without rain, has no gap to fill, unless its neighbours on a grid are as frequent. Its noise
    is as wide as a kernel of Silverman's rule for the other values, the finest detail that so many
    of them show. Three rows are enough for a value far from all others, such as a code for missing
    values.

    Attributes:
        width: half the width of the noise in each column, zero without ties, ``(D,)``.
        common: values that many rows share, K at most in a column, padded with NaN, ``(K, D)``.
        common_width: half the width of their noise, ``(D,)``.

    Reference: Theis, van den Oord and Bethge (2016), A note on the evaluation of generative models.

    Example:
        >>> x = torch.tensor([[0.0, 0.3], [1.0, 0.7], [1.0, 0.1], [0.0, 0.2]])
        >>> gaps = Gaps.fit(x)
        >>> gaps.width.tolist(), bool(gaps.any)
        ([0.5, 0.0], True)
    """

    width: Tensor
    common: Tensor
    common_width: Tensor

    @staticmethod
    def fit(x: Tensor, distinct: Tensor | None = None) -> Gaps:
        """The gaps of points without constant columns.

        Args:
            x: points ``(N, D)``.
            distinct: the points whose ties count, such as x without copies of rows, ``(K, D)``;
                None is x. A value that many rows share is found among all.
        """
        rows = x if distinct is None else distinct
        columns, halves = zip(x.unbind(1), rows.unbind(1)), _half_gaps(rows).tolist()
        common, kernels, widths = zip(*(_common(*c, half) for c, half in zip(columns, halves)))
        padded = pad_sequence(list(common), padding_value=torch.nan)
        return Gaps(x.new_tensor(widths), padded, x.new_tensor(kernels))

    @property
    def any(self) -> bool:
        """Whether a column has ties."""
        return bool((self.width > 0).any() or (self.common_width > 0).any())

    def fill(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Points with noise, ``(N, D) -> (N, D)``."""
        is_common = (x[:, None] == self.common).any(1)
        width = torch.where(is_common, self.common_width, self.width)
        return x + width * (2 * uniform(x.shape, x, generator) - 1)


def _common(column: Tensor, distinct: Tensor, half: float) -> tuple[Tensor, float, float]:
    """Values that are no rounding, half the width of their noise, and that of the others."""
    values, counts = column.unique(return_counts=True)
    codes = _far(column, values) & (counts >= _CODE_ROWS)
    often = ~codes & (counts >= max(_MIN_SHARE * len(column), _MIN_RATIO))
    frequent = values[often]
    # On a grid of rounded values the neighbours of a frequent value are frequent, too.
    apart = ((frequent[:, None] - frequent).abs() > 3 * half).sum(1) == len(frequent) - 1
    often[often.clone()] = apart
    rare = counts[~often & ~codes]
    if not bool((often | codes).any()) or len(rare) < _MIN_OTHERS:
        return values[:0], 0.0, half
    others = distinct[~torch.isin(distinct, values[often | codes])]
    is_rounding = bool(often.any()) and counts[often].min() < _MIN_RATIO * rare.double().mean()
    if is_rounding or _kernel(others) < _MIN_GAPS * half:
        often = torch.zeros_like(often)
        others = distinct[~torch.isin(distinct, values[codes])]
    if not bool((often | codes).any()):
        return values[:0], 0.0, half
    rounding = _half_gaps(others[:, None]).item()
    return values[often | codes], max(_kernel(others), rounding), rounding


def _far(column: Tensor, values: Tensor) -> Tensor:
    """Which of the sorted values of a column are few, and far from all others."""
    levels = column.new_tensor([0.25, 0.5, 0.75])
    low, middle, high = some_rows(column, _MAX_ROWS).quantile(levels).tolist()
    is_gap = values.diff() > _CODE_GAP * (high - low)
    part = torch.cat([is_gap.new_zeros(1), is_gap]).cumsum(0)
    own = part[(values <= middle).sum() - 1]
    left, right = part < own, part > own
    few = (left & (left.sum() <= _MAX_CODES)) | (right & (right.sum() <= _MAX_CODES))
    return few & (high > low)


def _kernel(x: Tensor) -> float:
    """Silverman's bandwidth for points ``(N,)``."""
    low, high = some_rows(x, _MAX_ROWS).quantile(x.new_tensor([0.25, 0.75])).tolist()
    return 0.9 * min(x.std().item(), (high - low) / 1.349) * len(x) ** -0.2


def _half_gaps(x: Tensor) -> Tensor:
    """Half the median gap between the values of each column with ties, ``(N, D) -> (D,)``."""
    return torch.as_tensor(Dequantise.fit(x).width)

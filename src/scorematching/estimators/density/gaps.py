"""Noise that fills the gaps between tied values, which have no density."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scorematching._random import uniform
from scorematching.datasets import Dequantise

_MIN_SHARE, _MIN_RATIO, _MIN_OTHERS, _MIN_GAPS = 0.01, 10, 10, 5
"""Of a value that is no rounding: least share of the rows, least multiple of the rows that other
values have, least number of other values, and least width of their kernel in half gaps."""


@dataclass(frozen=True)
class Gaps:
    """Uniform noise over the gaps between the values of rounded and discrete columns.

    Values that are tied have no density: the narrower the peaks on them, the larger likelihood and
    score become. With noise u as wide as the gap g this ends, since by Jensen's inequality
    ``E log p(x + u) <= log P(x - g/2 < X < x + g/2) - log g``, whatever p is.

    A value that many rows share in a column of otherwise different values, such as the zero of a
    day without rain, has no gap to fill, unless its neighbours on a grid are as frequent. Its noise
    is as wide as a kernel of Silverman's rule for the other values, the finest detail that so many
    of them show.

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
    """Values too common for rounding, half the width of their noise, and that of the others."""
    values, counts = column.unique(return_counts=True)
    often = counts >= max(_MIN_SHARE * len(column), _MIN_RATIO)
    frequent = values[often]
    # On a grid of rounded values the neighbours of a frequent value are frequent, too.
    apart = ((frequent[:, None] - frequent).abs() > 3 * half).sum(1) == len(frequent) - 1
    often[often.clone()] = apart
    rare = counts[~often]
    others = distinct[~torch.isin(distinct, values[often])]
    nothing = values[:0], 0.0, half
    if not bool(often.any()) or len(rare) < _MIN_OTHERS:
        return nothing
    low, high = others.quantile(others.new_tensor([0.25, 0.75])).tolist()
    kernel = 0.9 * min(others.std().item(), (high - low) / 1.349) * len(others) ** -0.2
    if counts[often].min() < _MIN_RATIO * rare.double().mean() or kernel < _MIN_GAPS * half:
        return nothing
    return values[often], kernel, _half_gaps(others[:, None]).item()


def _half_gaps(x: Tensor) -> Tensor:
    """Half the median gap between the values of each column with ties, ``(N, D) -> (D,)``."""
    return torch.as_tensor(Dequantise.fit(x).width)

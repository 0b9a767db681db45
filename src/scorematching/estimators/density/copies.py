"""Rows that repeat others: copies, or rows of rounded values that meet by chance."""

from __future__ import annotations

import torch
from torch import Tensor

_CHANCE = 0.03
"""Share of the pairs of equal rows that chance explains, from which on all may be due to it."""

_COMMON, _FEW = 0.05, 3
"""Share and number of rows above which one value of a single column is no copy of a row."""


def are_copies(x: Tensor) -> bool:
    """Whether rows ``(N, D)`` that repeat are copies, and not rounded values that meet by chance.

    If the columns were independent, the share of pairs of equal rows would be the product of the
    shares of pairs of equal values. Those are counted among different rows, so that copies do not
    count as ties. Values of a single column are copies if few rows share one, off any grid.

    Example:
        >>> x = torch.randn(30, 2)
        >>> are_copies(torch.cat([x, x])), are_copies(torch.randint(5, (300, 2)))
        (True, False)
    """
    rows, counts = x.unique(dim=0, return_counts=True)
    if len(rows) == len(x):
        return True
    if x.shape[1] == 1 or len(rows) == 1:
        few = counts <= max(_FEW, _COMMON * len(x))
        return bool((counts[few] > 1).any()) and not _on_grid(rows.flatten())
    ties = torch.stack([_pairs(column.unique(return_counts=True)[1]) for column in rows.unbind(1)])
    share = (ties / _pairs(torch.tensor([len(rows)]))).prod()
    return bool(share * _pairs(torch.tensor([len(x)])) < _CHANCE * _pairs(counts))


def _on_grid(values: Tensor) -> bool:
    """Whether the gaps between sorted values are of a grid; the least of random ones is smaller."""
    gaps = values.diff()
    return len(gaps) == 0 or bool(gaps.amin() * len(values) ** 0.5 > gaps.median())


def _pairs(counts: Tensor) -> Tensor:
    """Pairs of members of groups of given sizes."""
    return (counts * (counts - 1.0)).sum() / 2

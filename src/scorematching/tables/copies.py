"""Rows that repeat others: copies, or rows of rounded values that meet by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_CHANCE = 0.1
"""Share of the pairs of equal rows that chance explains, from which on all may be due to it."""


def are_copies(x: Tensor) -> bool:
    """Whether rows ``(N, D)`` that repeat are copies, and not rounded values that meet by chance.

    If the columns were independent, the share of pairs of equal rows would be the product of the
    shares of pairs of equal values. Those are counted among different rows, so that copies do not
    count as ties. Rows of a single column repeat as its values do.

    Example:
        >>> x = torch.randn(30, 2)
        >>> are_copies(torch.cat([x, x])), are_copies(torch.randint(5, (300, 2)))
        (True, False)
    """
    rows, counts = x.unique(dim=0, return_counts=True)
    if len(rows) == len(x):
        return True
    if x.shape[1] == 1 or len(rows) == 1:
        return False
    ties = torch.stack([_pairs(column.unique(return_counts=True)[1]) for column in rows.unbind(1)])
    share = (ties / _pairs(torch.tensor([len(rows)]))).prod()
    return bool(share * _pairs(torch.tensor([len(x)])) < _CHANCE * _pairs(counts))


def without_copies(frame: Any, columns: Sequence[str]) -> Any:
    """The rows of a data frame without copies of others; rows that repeat by chance all count.

    Args:
        frame: of numbers.
        columns: that are modelled.
    """
    x = torch.tensor(frame[list(columns)].to_numpy())
    return frame.drop_duplicates() if are_copies(x) else frame


def _pairs(counts: Tensor) -> Tensor:
    """Pairs of members of groups of given sizes."""
    return (counts * (counts - 1.0)).sum() / 2

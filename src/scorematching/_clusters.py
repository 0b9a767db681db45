"""Rows that depend on each other: clusters by their labels, and sums within them."""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SHOWN = 3
"""Labels of an index in a message."""


def require_same_rows(X: Any, values: Any, name: str) -> None:
    """Refuse a column of pandas whose index is not that of X, unless one of them merely counts.

    Raises:
        ValueError: if values of the rows would be those of other rows.
    """
    if not hasattr(X, "iloc") or not hasattr(values, "iloc") or X.index.equals(values.index):
        return
    if len(X) != len(values):  # which is refused elsewhere
        return
    if Counter(X.index) == Counter(values.index):
        raise ValueError(
            f"{name} must have its rows in the order of those of X, got the same index in another "
            f"order; use {name}.loc[X.index], or {name}.to_numpy() if it is in order all the same"
        )
    if not _counts(X.index) and not _counts(values.index):
        raise ValueError(
            f"{name} must have the index of X, which is {_shown(X.index)}, got "
            f"{_shown(values.index)}; use {name}.to_numpy() if its rows are in the order of X"
        )


def _counts(index: Any) -> bool:
    """Whether an index numbers the rows from 0, as that of pandas does where none was given."""
    return bool(list(index) == list(range(len(index))))


def _shown(index: Any) -> str:
    """The first labels of an index."""
    more = ", ..." if len(index) > _SHOWN else ""
    return f"[{', '.join(map(str, index[:_SHOWN]))}{more}]"


def groups_of(cluster: Any, used: Tensor) -> Tensor | None:
    """Clusters of rows as integers from 0; rows that are not used are in the first one.

    Args:
        cluster: labels ``(N,)``; None for independent rows.
        used: rows that count, ``(N,)``.

    Raises:
        ValueError: if there is not one label per row, or there are fewer than two clusters.
    """
    if cluster is None:
        return None
    labels = _as_labels(cluster)
    if labels.shape != (len(used),):
        raise ValueError(
            f"cluster must hold one label per row of X, shape ({len(used)},), got {labels.shape}; "
            "pass a column of labels"
        )
    names = labels.tolist()
    if missing := sum(map(_is_missing, names)):
        raise ValueError(
            f"cluster must have a label for every row, got none in {missing} rows; give rows that "
            "stand alone a label each"
        )
    places = {name: i for i, name in enumerate(dict.fromkeys(compress(names, used.tolist())))}
    if len(places) < 2:
        raise ValueError(
            f"cluster must name at least two clusters, got {len(places)}; leave it out for "
            "independent rows"
        )
    return torch.tensor([places.get(name, 0) for name in names])


def _as_labels(cluster: Any) -> Any:
    """Labels as an array; those of a list as they are, of which numpy would write NaN as "nan"."""
    labels = np.asarray(cluster.detach().cpu() if isinstance(cluster, Tensor) else cluster)
    is_text = labels.dtype.kind in "SU" and not isinstance(cluster, np.ndarray)
    return np.asarray(cluster, dtype=object) if is_text else labels


def _is_missing(name: Any) -> bool:
    """Whether a label is None, NaN, NaT or pandas' NA."""
    try:
        return name is None or bool(name != name)
    except TypeError:  # comparisons of NA are NA, which is no boolean
        return True


def square_of_sums(rows: Tensor, groups: Tensor) -> Tensor:
    """``G / (G - 1) sum_g s_g s_g'`` with the sums of rows ``(N, P)`` in G clusters, ``(P, P)``."""
    count = int(groups.max()) + 1
    sums = rows.new_zeros(count, rows.shape[1]).index_add_(0, groups, rows)
    return sums.T @ sums * count / (count - 1)

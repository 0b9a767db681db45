"""Tables that scikit-learn would read wrongly, or refuse without naming the argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from os import PathLike
from typing import Any

import numpy as np
from torch import Tensor

from scorematching._checks import dates_in


def as_table(X: Any) -> Any:
    """Tensors as arrays; arrays, lists and data frames as they are.

    Raises:
        TypeError: if X is no table.
        ValueError: if values are masked, complex, dates or durations, rows have different lengths,
            or two columns of a data frame have the same name.

    Example:
        >>> import torch
        >>> as_table(torch.ones(1, 2, requires_grad=True))
        array([[1., 1.]])
    """
    _refuse_other_types(X)
    if isinstance(X, Tensor):
        return X.detach().double().cpu().numpy()
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        place = ", ".join(str(int(index[0])) for index in np.ma.getmaskarray(X).nonzero())
        raise ValueError(
            f"X must have no masked values, got one at ({place}); drop such rows, or fill them in "
            "first, for example with sklearn.impute.SimpleImputer and X.filled(numpy.nan)"
        )
    repeated = [name for name, count in Counter(getattr(X, "columns", ())).items() if count > 1]
    if repeated:
        raise ValueError(
            f"X must have columns with different names, got {repeated[0]!r} more than once; rename "
            "the columns"
        )
    return X


def other_names(X: Any) -> list[str]:
    """Names of the columns of a data frame as text, if they are numbers, dates or pairs; else none.

    Example:
        >>> import pandas
        >>> other_names(pandas.DataFrame([[1.0, 2.0]])), other_names(pandas.DataFrame({"a": [1.0]}))
        (['0', '1'], [])
    """
    names = list(getattr(X, "columns", ()))
    return [] if any(isinstance(name, str) for name in names) else list(map(str, names))


def _refuse_other_types(X: Any) -> None:
    """Refuse what numpy would convert to something else, or not at all."""
    dtype = getattr(X, "dtype", None)
    fields = getattr(dtype, "names", None)
    if type(X) is dict or isinstance(X, (str, bytes, PathLike, Set, Iterator)) or fields:
        kind = "a structured array" if fields else f"a {type(X).__name__}"
        raise TypeError(
            f"X must be an array or a data frame (N, D), got {kind}; use pandas.DataFrame(X), or "
            "pandas.read_csv for a file"
        )
    if hasattr(X, "column_names"):
        raise TypeError(
            f"X must be an array or a data frame (N, D), got {type(X).__module__} "
            f"{type(X).__name__}; use X.to_pandas()"
        )
    if getattr(dtype, "is_complex", getattr(dtype, "kind", "") == "c"):
        raise ValueError(
            f"X must hold real numbers, got {dtype}: Complex data not supported; pass real and "
            "imaginary parts as columns of their own"
        )
    _refuse_dates(X)
    if isinstance(X, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in X):
        _refuse_ragged([len(row) for row in X])


def _refuse_dates(X: Any) -> None:
    """Refuse arrays of dates or durations, and data frames with columns of them."""
    where, dtype = dates_in(X)
    if dtype is not None:
        raise ValueError(
            f"X must hold numbers, got dates or durations{where} ({dtype}); convert them to "
            "numbers in a unit of your choice, for example (X - X.min()) / "
            'numpy.timedelta64(1, "D")'
        )


def _refuse_ragged(lengths: list[int]) -> None:
    """Refuse rows of different lengths."""
    odd = [row for row, length in enumerate(lengths) if length != lengths[0]]
    if odd:
        raise ValueError(
            f"X must have rows of one length, got {lengths[odd[0]]} values in row {odd[0]} and "
            f"{lengths[0]} in row 0; fill in what is missing, or drop such rows"
        )

"""Tables that scikit-learn would read wrongly, or refuse without naming the argument."""

from __future__ import annotations

from collections import Counter
from os import PathLike
from typing import Any

import numpy as np
from torch import Tensor


def as_table(X: Any) -> Any:
    """Tensors as arrays; arrays, lists and data frames as they are.

    Raises:
        TypeError: if X is no table.
        ValueError: if values are masked, or two columns of a data frame have the same name.

    Example:
        >>> import torch
        >>> as_table(torch.ones(1, 2, requires_grad=True))
        array([[1., 1.]])
    """
    if isinstance(X, Tensor):
        return X.detach().double().cpu().numpy()
    fields = getattr(getattr(X, "dtype", None), "names", None)
    if type(X) is dict or isinstance(X, (str, bytes, PathLike)) or fields:
        kind = "a structured array" if fields else f"a {type(X).__name__}"
        raise TypeError(
            f"X must be an array or a data frame (N, D), got {kind}; use pandas.DataFrame(X), or "
            "pandas.read_csv for a file"
        )
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

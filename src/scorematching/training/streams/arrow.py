"""pyarrow, which reads tables, and what it reads as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def import_arrow() -> Any:
    """The package pyarrow, with its modules for data sets and csv.

    Raises:
        ImportError: says how to install it.
    """
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError(
            "reading csv and parquet files in blocks needs pyarrow; pip install "
            "'scorematching[tables]'"
        ) from error
    return pyarrow


def to_rows(table: Any) -> Tensor:
    """A table of numbers as rows ``(N, D)``; missing values are NaN.

    In single precision if that holds all columns exactly, else in double.
    """
    columns = [column.to_numpy() for column in table.columns]
    single = all(column.dtype in (np.float32, np.float16, np.bool_) for column in columns)
    rows = torch.empty(
        table.num_rows, len(columns), dtype=torch.float32 if single else torch.float64
    )
    for place, column in enumerate(columns):
        rows.numpy()[:, place] = column
    return rows

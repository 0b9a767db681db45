"""pyarrow, which reads tables, and what it reads as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorematching._extras import import_extra


def import_arrow() -> Any:
    """The package pyarrow, with its modules for data sets and csv.

    Raises:
        ImportError: says how to install it.
    """
    for module in ("pyarrow.csv", "pyarrow.dataset"):
        import_extra(module, "tables")
    return import_extra("pyarrow", "tables")


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

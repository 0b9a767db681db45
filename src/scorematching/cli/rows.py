"""Rows of another file in the columns that a run's model takes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from scorematching._extras import import_extra
from scorematching.runs import Run
from scorematching.tables import Loaded


def columns_of(run: Run, loaded: Loaded) -> Any:
    """The columns that a model takes, as numbers; values that are none become NaN.

    Columns that were set aside may be left out of the file, since they follow from the others.

    Raises:
        ValueError: if a column is not there.
    """
    absent = [name for name in run.columns if name not in loaded.frame]
    for name in absent:
        if name in run.summary.modelled:
            close = get_close_matches(name, list(loaded.frame), n=1)
            meant = f"; is it {close[0]!r} there?" if close else ""
            raise ValueError(
                f"{loaded.name} must have the columns that {run.folder} was fitted to, got none "
                f"named {name!r}{meant}"
            )
    to_numeric = import_extra("pandas", "tables").to_numeric
    present = loaded.frame[[name for name in run.columns if name not in absent]]
    numbers = present.apply(lambda values: to_numeric(values, errors="coerce")).astype(np.float64)
    if absent:
        modelled = torch.tensor(numbers[run.summary.modelled].to_numpy())
        restored = run.model.table_.restore(modelled).numpy()
        numbers = numbers.assign(**{name: restored[:, run.columns.index(name)] for name in absent})
    return numbers[run.columns]


def rows_of(run: Run, loaded: Loaded, command: str) -> Any:
    """Complete rows in the columns that a model takes.

    Raises:
        ValueError: if values are missing or infinite, with the first row.
    """
    numbers = columns_of(run, loaded)
    bad = ~np.isfinite(numbers.to_numpy()).all(1)
    if bad.any():
        raise ValueError(
            f"{command} needs rows of numbers, got {int(bad.sum())} of {len(bad)} rows of "
            f"{loaded.name} with missing values, the first is row {int(bad.argmax()) + 1}; leave "
            "them out of the file"
        )
    return numbers

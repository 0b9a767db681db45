"""Rows of another file in the columns that a run's model takes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from scorematching.estimators.density.copies import are_copies
from scorematching.estimators.density.refusals import MAX_DISTANCE
from scorematching.runs import Run
from scorematching.tables import Loaded
from scorematching.tables.kinds import numbers_of
from scorematching.tables.read import DECIMAL_COMMA, NO_NAMES
from scorematching.tables.summary import alike

FAR = 10.0
"""Distance of the median from the mean of the fit, in standard deviations, that is worth a line."""

MANY, SHARE = 3, 1 / 3
"""Rows with one value at such a distance that are worth a line, too, and of all rows so far out:
rounded values of a long tail repeat, too, but each of them less often."""

EMPTY = "leave the field empty if it means missing"
"""What to do about codes where rows with missing values are left empty."""

LEAVE_OUT = "leave such rows out of the file if it means missing"
"""The same where all rows must be complete."""


def columns_of(run: Run, loaded: Loaded, advice: str = LEAVE_OUT) -> Any:
    """The columns that a model takes, as numbers; values that are none become NaN.

    Columns that were set aside may be left out of the file, since they follow from the others.

    Args:
        run: with the model.
        loaded: the file.
        advice: about values that are too far from those of the fit, `EMPTY` or `LEAVE_OUT`.

    Raises:
        ValueError: if a column is not there, or a value is too far from those of the fit.
    """
    absent = [name for name in run.columns if name not in loaded.frame]
    for name in absent:
        if name in run.summary.modelled:
            close = alike(name, [other for other in loaded.frame if other not in run.columns])
            meant = f"; is it {close!r} there?" if close else ""
            meant = f"; {NO_NAMES}" if NO_NAMES in loaded.notes else meant
            raise ValueError(
                f"{loaded.name} must have the columns that {run.folder} was fitted to, got none "
                f"named {name!r}{meant}"
            )
    comma = DECIMAL_COMMA in loaded.notes
    present = loaded.frame[[name for name in run.columns if name not in absent]]
    numbers = present.apply(lambda values: numbers_of(values, comma)).astype(np.float64)
    numbers = completed(run, numbers)
    _refuse_far(run, loaded, numbers, advice)
    return numbers


def completed(run: Run, numbers: Any) -> Any:
    """The columns that a model takes; those that were set aside follow from others if not there."""
    absent = [name for name in run.columns if name not in numbers]
    if absent:
        modelled = torch.tensor(numbers[run.summary.modelled].to_numpy())
        restored = run.model.table_.restore(modelled).numpy()
        numbers = numbers.assign(**{name: restored[:, run.columns.index(name)] for name in absent})
    return numbers[run.columns]


def rows_of(run: Run, loaded: Loaded, command: str) -> Any:
    """Complete rows without copies in the columns that a model takes.

    Raises:
        ValueError: if values are missing or infinite, with the first row, or there is only one.
    """
    numbers = columns_of(run, loaded)
    if said := incomplete(numbers):
        raise ValueError(
            f"{command} needs rows of numbers, got in {loaded.name} {said}; leave them out of the "
            "file"
        )
    if len(numbers.drop_duplicates()) < 2:
        raise ValueError(
            f"{command} needs two different rows or more for standard errors, got 1 in "
            f"{loaded.name}; `scorematching score` takes single rows"
        )
    return without_copies(run, numbers)


def without_copies(run: Run, rows: Any) -> Any:
    """Rows without copies of others; those that repeat by chance all count."""
    return rows.drop_duplicates() if are_copies(run.space.rows(rows)) else rows


def kind_of_rows(rows: Any) -> str:
    """What to call rows without copies, some of which may repeat by chance."""
    return "rows" if rows.duplicated().any() else "different rows"


def far_columns(run: Run, numbers: Any, advice: str = LEAVE_OUT) -> list[str]:
    """A line for each column that lies far from the rows of the fit, as in other units.

    Args:
        run: with the fit.
        numbers: rows in the columns that its model takes.
        advice: about values that may mean missing, `EMPTY` or `LEAVE_OUT`.
    """
    scaling, said = run.space.scaling, []
    for name, mean, std in zip(run.space.columns, scaling.mean.tolist(), scaling.std.tolist()):
        median = float(np.nanmedian(numbers[name]))
        if abs(median - mean) > FAR * std:
            said.append(
                f"column {name!r} is far from the rows of the fit: its median is {median:.4g}, "
                f"where the fit had {mean:.4g} +- {std:.2g}; are these other units?"
            )
        elif many := _far_value(numbers[name], mean, std):
            said.append(
                f"column {name!r} is {many[0]:.6g} in {many[1]} rows, far from the rows of the fit "
                f"({mean:.4g} +- {std:.2g}); {advice}"
            )
    return said


def _far_value(values: Any, mean: float, std: float) -> tuple[float, int] | None:
    """The commonest value far from the fit, such as -999, and how often, if it stands out."""
    counts = values[(values - mean).abs() > FAR * std].value_counts()
    if not len(counts) or counts.iloc[0] < max(MANY, SHARE * counts.sum()):
        return None
    return float(counts.index[0]), int(counts.iloc[0])


def aside_columns(run: Run, numbers: Any) -> list[str]:
    """A line if columns that were set aside have other values than follow from the fit."""
    table = getattr(run.model, "table_", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if table is not None:
            table.warn_if_off(torch.tensor(numbers[run.columns].to_numpy()))
    return [str(warning.message) for warning in caught]


def known_rows(loaded: Loaded, *runs: Run) -> list[str]:
    """A line that says so, if a table is the one that a run was fitted to."""
    return [
        f"{loaded.name} is the table that {run.folder} was fitted to: "
        f"{run.summary.rows_used - len(run.rows):,} of its {len(loaded.frame):,} rows are not new, "
        "and numbers at them are too good"
        for run in runs
        if loaded.sha256 == run.summary.sha256
    ]


def incomplete(numbers: Any) -> str:
    """Rows with values that are missing or no finite numbers, in words; empty if there are none."""
    bad = ~np.isfinite(numbers.to_numpy())
    if not bad.any():
        return ""
    row, column = (int(place[0]) for place in bad.nonzero())
    return (
        f"{int(bad.any(1).sum())} of {len(bad)} rows with missing values, text or infinity, the "
        f"first is row {row + 1}, column {numbers.columns[column]!r}"
    )


def _refuse_far(run: Run, loaded: Loaded, numbers: Any, advice: str) -> None:
    """Refuse values so far from those of the fit that squares overflow, with the place."""
    scaling, columns = run.space.scaling, list(run.space.columns)
    with np.errstate(over="ignore"):
        s = np.abs(numbers[columns].to_numpy() - scaling.mean.numpy()) / scaling.std.numpy()
    far = np.isfinite(numbers[columns].to_numpy()) & (s > MAX_DISTANCE)
    if far.any():
        row, column = (int(place[0]) for place in far.nonzero())
        raise ValueError(
            f"{loaded.name} must lie within {MAX_DISTANCE:g} standard deviations of the rows of "
            f"the fit, got {numbers[columns[column]].iloc[row]:g} in row {row + 1}, column "
            f"{columns[column]!r}; {advice}"
        )

"""Findings about a table, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.estimators.density.copies import are_copies
from scorematching.estimators.density.gaps import Gaps
from scorematching.estimators.density.table import Table
from scorematching.tables.kinds import are_dates, names_rows
from scorematching.tables.summary import Column, Finding, listed

LINEAR = "linear function of other columns"
NONLINEAR = "nonlinear function of other columns"
"""Findings about columns that determine each other, which some families ask for."""

ROUNDED, SHARED = "rounded or discrete", "one value in several rows"
NOISY = (ROUNDED, SHARED)
"""Findings about values that need noise to have a density."""

_CLOSE = 0.98
_MAX_ROWS = 10_000


def findings_of(
    columns: Sequence[Column],
    missing: Any,
    table: Table,
    x: Tensor,
    used: Sequence[str],
    rounded: NDArray[np.float64],
    dequantise: bool,
) -> Iterator[Finding]:
    """What has to be known about a table.

    Args:
        columns: all of them.
        missing: which values of the columns of numbers are missing.
        table: what is modelled.
        x: the numbers ``(N, D)``.
        used: names of its columns.
        rounded: noise that would fill the gaps of rounded columns.
        dequantise: whether it is added.
    """
    yield from _left_out(columns)
    yield from _names(columns, len(missing))
    yield from _dates(table.reduce(x), [used[c] for c in table.kept])
    yield from _missing(missing)
    yield from _set_aside(table, used)
    yield from _rounded(table, used, x, rounded, dequantise)
    yield from _common(table.reduce(x), [used[c] for c in table.kept])
    yield from _related(table, x, used)
    yield from _wide(table, x, used)
    yield from _collinear(table.reduce(x), [used[c] for c in table.kept])
    if table.repeated and are_copies(table.reduce(x)):
        done = "copies stay together when rows are held out"
        yield Finding(f"{_rows(table.repeated)} equal to an earlier one", done)


def _left_out(columns: Sequence[Column]) -> Iterator[Finding]:
    done = {
        "text": "left out, since a density needs numbers; fit a table for each group to compare",
        "dates": "left out; turn them into numbers, such as days, to model them",
        "empty": "left out",
        "numbers the rows": "left out; name the column in --columns to model it all the same",
    }
    for role, action in done.items():
        names = [column.name for column in columns if column.role == role]
        if names:
            word = "column without values" if role == "empty" else f"column of {role}"
            word = "column that numbers the rows" if role == "numbers the rows" else word
            yield Finding(f"{word} ({listed(names)})", action)
    flags = [c.name for c in columns if c.kind == "true/false" and c.role == "modelled"]
    if flags:
        yield Finding(f"true and false ({listed(flags)})", "modelled as 1 and 0")


def _names(columns: Sequence[Column], rows: int) -> Iterator[Finding]:
    """Columns that say whose a row is: their numbers measure nothing, and rows of one are alike."""
    kinds = ("whole numbers", "text")
    named = (c for c in columns if names_rows(c.name) or _is_index(c, columns, rows))
    found = [c for c in named if c.kind in kinds and c.distinct > 1]
    if numbers := [c.name for c in found if c.role == "modelled"]:
        done = "modelled as a measurement; leave it out with --columns if it is a name"
        yield Finding(f"perhaps names of rows ({listed(numbers)})", done)
    if groups := [f"{c.name} {c.distinct} values" for c in found if c.distinct < rows - c.missing]:
        yield Finding(
            f"perhaps several rows of one individual ({listed(groups)})",
            "rows are held out one by one, and numbers at rows of individuals that the fit knows "
            "are too good: fit a file with some individuals, and evaluate one with the others",
        )


def _is_index(column: Column, columns: Sequence[Column], rows: int) -> bool:
    """Whether it is the first, without a name beside others with names, and nowhere the same."""
    nameless = [f"column {i}" == each.name for i, each in enumerate(columns, 1)]
    return column is columns[0] and nameless[0] and not all(nameless) and column.distinct == rows


def _dates(x: Tensor, names: Sequence[str]) -> Iterator[Finding]:
    dates = [name for name, column in zip(names, x.mT.numpy()) if are_dates(column)]
    if dates:
        yield Finding(
            f"dates as whole numbers ({listed(dates)})",
            "modelled as numbers, in which 20240131 and 20240201 are 70 apart: turn them into "
            "days, or leave them out with --columns",
        )


def _missing(missing: Any) -> Iterator[Finding]:
    rows = int(missing.any(axis=1).sum())
    if rows:
        counts = missing.sum()
        where = listed(f"{name} {count}" for name, count in counts[counts > 0].items())
        yield Finding(f"{_rows(rows)} with missing values ({where})", "left out")


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def _set_aside(table: Table, used: Sequence[str]) -> Iterator[Finding]:
    if table.constant:
        names = listed(used[c] for c in table.constant)
        yield Finding(f"constant ({names})", "set aside; samples have the constant again")
    if table.dependent:
        names = listed(used[c] for c in table.dependent)
        yield Finding(
            f"{LINEAR} ({names})",
            "set aside, since the density is that of the others; samples have it again",
        )


def _rounded(
    table: Table, used: Sequence[str], x: Tensor, rounded: NDArray[np.float64], dequantise: bool
) -> Iterator[Finding]:
    columns = [c for c, width in zip(table.kept, rounded) if width > 0]
    if not columns:
        return
    named = listed(f"{used[c]} {len(x[:, c].unique())} values" for c in columns)
    done = "uniform noise fills the gaps, since rounded values have no density"
    if not dequantise:
        done = "left as they are when rows are evaluated; a density has noise over the gaps"
    yield Finding(f"{ROUNDED} ({named})", done)


def _common(x: Tensor, names: Sequence[str]) -> Iterator[Finding]:
    """Columns in which many rows have one value, such as a code for missing values."""
    common = Gaps.fit(x, x.unique(dim=0) if len(names) > 1 else None).common
    pairs = [(name, v) for name, values in zip(names, common.T.tolist()) for v in values]
    shown = listed(f"{name} {value:g}" for name, value in pairs if value == value)
    if shown:
        yield Finding(
            f"{SHARED} ({shown})",
            "kept, but likelihoods depend on the width of the noise there: leave fields empty and "
            "pass --drop-missing if it means missing, or fit rows with and without it apart",
        )


def _related(table: Table, x: Tensor, used: Sequence[str]) -> Iterator[Finding]:
    """Columns that are exact functions of each other."""
    for columns in table.related(table.reduce(x)):
        yield Finding(
            f"{NONLINEAR} ({listed(used[c] for c in columns)})",
            "kept, but there is no density, and likelihoods only say how narrow the fit is: leave "
            "one of them out with --columns",
        )


def _wide(table: Table, x: Tensor, used: Sequence[str]) -> Iterator[Finding]:
    """Positive columns over many orders of magnitude."""
    if columns := table.wide(table.reduce(x)):
        yield Finding(
            f"many orders of magnitude ({listed(used[c] for c in columns)})",
            "kept as they are; a table with their logarithms in place of them is fitted better",
        )


def _collinear(x: Tensor, names: Sequence[str]) -> Iterator[Finding]:
    if len(names) < 2:
        return
    correlations = torch.corrcoef(some_rows(x, _MAX_ROWS).T).abs().triu(1).nan_to_num()
    pairs = (correlations > _CLOSE).nonzero().tolist()
    if pairs:
        shown = listed(f"{names[a]} and {names[b]} {correlations[a, b]:.3f}" for a, b in pairs)
        yield Finding(f"nearly collinear (correlation of {shown})", "both kept")

"""From a data frame to numbers that have a density, with an account of every decision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scorematching.estimators.density.gaps import Gaps
from scorematching.estimators.density.refusals import refuse_units
from scorematching.estimators.density.table import Table, inspect
from scorematching.tables.findings import findings_of
from scorematching.tables.kinds import counts_rows, kind_of, refuse_almost_numbers
from scorematching.tables.read import DECIMAL_COMMA, Loaded
from scorematching.tables.summary import Column, Finding, TableSummary, alike, listed

MIN_ROWS = 20
"""Different rows that a fit needs at least, since a fifth of them is held out."""

NUMBERS = ("numbers", "whole numbers", "true/false")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table that a density can be fitted to.

    Attributes:
        frame: numbers, one column for each of the chosen ones, constant columns included.
        rows: where its rows are in the file, counted from zero.
        table: which columns are modelled, and how the others follow from them.
        width: half the width of the noise that fills the gaps of rounded values, one number per
            modelled column; zeros where none is added.
        summary: in words.
        common: for modelled columns in which many rows share a value, by name, "values" and half
            the "width" of their noise, which is wider.
    """

    frame: Any
    rows: NDArray[np.int64]
    table: Table
    width: NDArray[np.float64]
    summary: TableSummary
    common: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def dequantised(self) -> bool:
        """Whether noise is added to some column."""
        return bool((self.width > 0).any() or self.common)


def prepare(
    loaded: Loaded,
    columns: Sequence[str] | None = None,
    drop_missing: bool = False,
    dequantise: str = "auto",
) -> Prepared:
    """Choose columns and rows that a density can be fitted to.

    Text, dates, empty columns and columns that number the rows are left out, unless they were
    asked for by name, which is refused.

    Args:
        loaded: the table.
        columns: names of the columns to use; None takes all that are numbers.
        drop_missing: leave out rows with missing values; otherwise they are refused.
        dequantise: "auto" adds noise to rounded columns, "none" does not.

    Returns:
        The numbers, and what was done.

    Raises:
        ValueError: naming the column and the row, if values are missing, infinite or no numbers,
            or too little is left.

    Example:
        >>> from scorematching.tables.read import read
        >>> prepare(read("redwine")).summary.rows_used
        1599
    """
    frame = loaded.frame if columns is None else _chosen(loaded.frame, columns)
    if loaded.rows is not None:
        frame = frame.set_axis(loaded.rows)  # so that errors name rows of the file
    kinds = {name: kind_of(frame[name]) for name in frame}
    used = _usable(replace(loaded, frame=frame), kinds, asked=columns is not None)
    numbers = _numbers(frame[used])
    missing = numbers.isna()
    if missing.to_numpy().any() and not drop_missing:
        _refuse_missing(missing)
    numbers = numbers[~missing.any(axis=1)]
    _refuse_units(numbers, loaded.name)
    x = torch.tensor(numbers.to_numpy())
    _check_rows(x, len(frame), loaded.name)
    table = inspect(x, used)
    if not table.kept:
        raise ValueError(f"{loaded.name} has no column that varies; every value is the same")
    rounded, common = _noise(table, x, used)
    add = dequantise == "auto"
    described = _columns(frame, kinds, _roles(used, table))
    found = [*_drawn(loaded), *findings_of(described, missing, table, x, used, rounded, add)]
    counts = (len(frame), len(numbers))
    about = (loaded.name, loaded.sha256, *counts, described, tuple(found), loaded.notes)
    rows = numbers.index.to_numpy(np.int64)
    width = rounded if add else np.zeros_like(rounded)
    numbers, summary = numbers.reset_index(drop=True), TableSummary(*about)
    return Prepared(numbers, rows, table, width, summary, common if add else {})


def _drawn(loaded: Loaded) -> list[Finding]:
    """What has to be known of a sample."""
    if loaded.total is None:
        return []
    found = f"{len(loaded.frame):,} of {loaded.total:,} rows of the file, drawn at random"
    return [Finding(found, "all results are those of this sample; the other rows are not used")]


def fitted_to(table: Prepared, rows: NDArray[np.int64]) -> Prepared:
    """A table of which only some rows are fitted to; columns that are constant there are set aside.

    Args:
        table: from `prepare`.
        rows: numbers of the rows of its frame that are fitted to.

    Returns:
        The same table, with other columns set aside where that is needed, and with the noise of
        these rows, which is that of an estimator that sees no others.
    """
    x = torch.tensor(table.frame.to_numpy()[rows])
    used = list(table.frame.columns)
    found = inspect(x, used)
    if not found.kept:
        return table
    rounded, common = _noise(found, x, used)
    width = rounded if table.dequantised else np.zeros_like(rounded)
    common = common if table.dequantised else {}
    if found.kept == table.table.kept:
        return replace(table, width=width, common=common)
    roles = _roles(used, found)
    columns = tuple(replace(c, role=roles.get(c.name, c.role)) for c in table.summary.columns)
    changed = [a.name for a, b in zip(columns, table.summary.columns) if a.role != b.role]
    finding = Finding(
        f"another role among the rows that are fitted to ({listed(changed)})",
        "columns that are constant or determined by others there are set aside",
    )
    summary = replace(table.summary, columns=columns, findings=(*table.summary.findings, finding))
    return replace(table, table=found, width=width, summary=summary, common=common)


def _noise(table: Table, x: torch.Tensor, used: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Half the width of noise in modelled columns, and `Prepared.common`: as `Gaps` has them."""
    z = table.reduce(x)
    # Values that repeat only because whole rows do are not rounded.
    gaps = Gaps.fit(z, z.unique(dim=0) if z.shape[1] > 1 else None)
    columns = zip(table.kept, gaps.common.mT.tolist(), gaps.common_width.tolist())
    found = {used[c]: ([v for v in values if v == v], width) for c, values, width in columns}
    common = {name: {"values": v, "width": width} for name, (v, width) in found.items() if v}
    return np.asarray(gaps.width), common


def _numbers(frame: Any) -> Any:
    """Columns of numbers in double precision, missing values as NaN."""
    numbers = frame.apply(lambda values: values.to_numpy(np.float64, na_value=np.nan))
    _refuse_infinite(numbers)
    return numbers


def _columns(frame: Any, kinds: dict[str, str], roles: dict[str, str]) -> tuple[Column, ...]:
    """All columns of a table, described."""
    missing = frame.isna().sum()
    distinct = {  # lists, which files may have in place of text, cannot be compared
        name: (frame[name].dropna().astype(str) if kind == "text" else frame[name]).nunique()
        for name, kind in kinds.items()
    }
    return tuple(
        Column(name, kind, int(missing[name]), int(distinct[name]), roles.get(name, _reason(kind)))
        for name, kind in kinds.items()
    )


def _chosen(frame: Any, columns: Sequence[str]) -> Any:
    """The columns that were asked for, in that order."""
    for name in columns:
        if name not in frame:
            close = alike(name, list(frame))
            meant = f"did you mean {close!r}?" if close else f"there are {listed(frame)}"
            if parts := [each for each in frame if name in re.split(r"\s*,\s*", each)]:
                meant = f"a name with a comma needs double quotes around it: '\"{parts[0]}\"'"
            raise ValueError(f"--columns names {name!r}, which the table does not have; {meant}")
    return frame[list(dict.fromkeys(columns))]


def _usable(loaded: Loaded, kinds: dict[str, str], asked: bool) -> list[str]:
    """Names of columns of numbers; others are refused if they were asked for."""
    frame = loaded.frame
    for name, kind in kinds.items():
        if kind == "text":
            refuse_almost_numbers(frame[name], name, DECIMAL_COMMA in loaded.notes)
        if asked and kind not in NUMBERS:
            raise ValueError(
                f"column {name!r} must hold numbers, got {kind}; leave it out of --columns, or "
                "turn it into numbers first"
            )
    numbers = [name for name, kind in kinds.items() if kind in NUMBERS]
    used = [name for name in numbers if asked or not counts_rows(frame[name], loaded.rows)]
    if numbers and not used:
        raise ValueError(
            f"the table must have a column of measurements, got {listed(numbers)}, which numbers "
            "the rows; name the column in --columns to model it all the same"
        )
    if not used:
        found = ", ".join(f"{name} ({kind})" for name, kind in list(kinds.items())[:5])
        raise ValueError(
            f"the table must have a column of numbers, got {found}; turn text into numbers first"
        )
    return used


def _refuse_infinite(numbers: Any) -> None:
    infinite = np.isinf(numbers.to_numpy())
    if infinite.any():
        row, column = (int(place[0]) for place in infinite.nonzero())
        raise ValueError(
            f"column {numbers.columns[column]!r} has an infinite value in row "
            f"{numbers.index[row] + 1}; correct it, or leave it empty and pass --drop-missing"
        )


def _refuse_units(numbers: Any, name: str) -> None:
    """Refuse columns whose squares overflow, which would look like constants."""
    try:
        refuse_units(numbers.to_numpy(), list(numbers))
    except ValueError as error:
        raise ValueError(str(error).replace("X", name, 1)) from error


def _refuse_missing(missing: Any) -> None:
    counts = missing.sum()
    worst = [f"{name!r} {count}" for name, count in counts[counts > 0].items()]
    row = int(missing.any(axis=1).idxmax()) + 1
    raise ValueError(
        f"{int(missing.any(axis=1).sum())} of {len(missing)} rows have missing values, the first "
        f"is row {row} (missing in {listed(worst)}); pass --drop-missing to leave these rows out, "
        "or --columns to choose complete columns"
    )


def _check_rows(x: torch.Tensor, rows: int, name: str) -> None:
    different = len(x.unique(dim=0)) if len(x) else 0
    if different < MIN_ROWS:
        left = f" after rows with missing values were left out, of {rows}" if len(x) < rows else ""
        raise ValueError(
            f"{name} must have {MIN_ROWS} different rows or more, got {different}{left}; a fifth "
            "of them is held out, and a density cannot be fitted to so few"
        )


def _roles(used: list[str], table: Table) -> dict[str, str]:
    """What becomes of the columns of numbers."""
    roles = {used[c]: "modelled" for c in table.kept}
    roles |= {used[c]: "constant" for c in table.constant}
    return roles | {used[c]: "follows from others" for c in table.dependent}


def _reason(kind: str) -> str:
    """Why a column was left out before its numbers were looked at."""
    return "numbers the rows" if kind in NUMBERS else kind

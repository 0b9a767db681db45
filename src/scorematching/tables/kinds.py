"""Kinds of columns: numbers, true and false, text, dates, counts of the rows."""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorematching._extras import import_extra

_DATE = re.compile(
    r"\s*(\d{4}[-/]\d{1,2}([-/]|$)|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{1,2}:\d\d"
    r"|\d{1,2}[-/. ]+(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))",
    re.IGNORECASE,
)
_FIRST_DATE, _LAST_DATE = 1900_01_01, 2100_12_31
_ID = re.compile(r"(?<![A-Za-z])(id|ID|Id)(?![A-Za-z])|(?<=[a-z])(ID|Id)(?![A-Za-z])")
_GROUPS = {"patient", "subject", "participant", "person", "customer", "user", "household"}
"""What a column without "id" in its name may be called if it says whose a row is."""

_NUMBER_OF = {"", "no", "nr", "num", "number", "code", "name", "index", "key"}
"""Words that may stand beside these."""

_MARKS = re.compile("[\\s%'\N{RIGHT SINGLE QUOTATION MARK}_$€£¥]")
"""Signs beside the digits of numbers: percents, thousands, currencies."""

_MINUS = "\N{MINUS SIGN}"
"""Which word processors write in place of a hyphen."""

_NEGATIVE = re.compile(r"^(?:\(([\d.,]+)\)|([\d.,]+)-)$")
"""Negative numbers as in accounts: (1,200) or 1,200-."""

_LIMIT = re.compile(r"\s*[<>≤≥]=?\s*[-+]?[\d.,]+")
"""A value that is known to lie below or above a limit, such as <0.5."""

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$")
_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+$")
_UNIT = re.compile(r"(?<=\d)\s*([a-zA-Z°µμΩ][^\s\d]{0,4})\s*$")
"""A short word after a number, such as kg, mg/dL or years."""

_MOSTLY, _ALWAYS = 0.5, 0.9


def kind_of(values: Any) -> str:
    """What a column of a data frame holds.

    Args:
        values: a pandas series.

    Returns:
        "numbers", "whole numbers", "true/false", "dates", "text" or "empty".

    Example:
        >>> import pandas
        >>> kind_of(pandas.Series(["2024-01-31", None]))
        'dates'
    """
    types = import_extra("pandas", "tables").api.types
    present = values.dropna()
    if not len(present):
        return "empty"
    if types.is_bool_dtype(values) or (
        values.dtype == object and all(isinstance(value, (bool, np.bool_)) for value in present)
    ):
        return "true/false"
    if types.is_complex_dtype(values):
        return "text"
    objects = values.dtype == object and all(isinstance(v, (Real, Decimal)) for v in present)
    if types.is_numeric_dtype(values) or objects:
        number = _numbers(present)
        return "whole numbers" if (number == np.round(number)).all() else "numbers"
    if types.is_datetime64_any_dtype(values) or types.is_timedelta64_dtype(values):
        return "dates"
    shown = present.astype(str)
    return "dates" if all(map(is_date, shown[:100])) else "text"


def is_date(text: str) -> bool:
    """Whether a text begins as a date or a time does.

    Example:
        >>> is_date("2024-01-31 08:00"), is_date("2024")
        (True, False)
    """
    return bool(_DATE.match(text))


def _numbers(present: Any) -> Any:
    """Numbers in double precision, in which they must stay different.

    Raises:
        ValueError: for whole numbers of so many digits that some become equal.
    """
    try:
        number = present.to_numpy(np.float64)
    except OverflowError:
        number = np.full(len(present), np.inf)
    if (np.abs(number) <= 2**53).all():
        return number
    whole = all(isinstance(value, (int, np.integer)) for value in present)
    if whole and present.nunique() > len(np.unique(number)):
        raise ValueError(
            f"column {present.name!r} holds whole numbers of too many digits, such as "
            f"{str(present.iloc[0])[:25]}, some of which are equal in double precision; subtract a "
            "number from all, or leave the column out with --columns"
        )
    return number


def refuse_almost_numbers(values: Any, name: str, comma: bool = False) -> None:
    """Refuse a column of text that is mostly numbers: leaving it out would surprise.

    Args:
        values: a pandas series.
        name: of the column.
        comma: whether numbers of the file have decimal commas.

    Raises:
        ValueError: with the first value that is no number, and its row.
    """
    pandas = import_extra("pandas", "tables")
    present = values.dropna().astype(str)
    bad = numbers_of(present, comma).isna()
    bare = _without_unit(present).map(lambda text: _without_marks(text, comma))
    plain = pandas.to_numeric(bare, errors="coerce")
    marked = bad & plain.notna()
    if not bad.any() or (plain.notna().mean() > _MOSTLY and marked.sum() > bad.sum() / 2):
        row = (marked | (not bad.any())).idxmax()
        raise ValueError(
            f"column {name!r} holds numbers as text, such as {present[row]!r} in row "
            f"{int(row) + 1}; write {plain[row]:.15g} in place of it, or leave the column out with "
            "--columns"
        )
    limits = bad & present.map(lambda text: bool(_LIMIT.match(text)))
    if bad.mean() < _MOSTLY or ((bad == limits).all() and not bad.all()):
        advice = "write missing values as empty fields, or leave"
        if limits.any():
            advice = "a value beyond a limit is not missing, and has no density: leave"
        first = limits if limits.any() else bad
        raise ValueError(
            f"column {name!r} holds numbers except for {present[first].iloc[0]!r} in row "
            f"{int(first.idxmax()) + 1} ({int(bad.sum())} in all); {advice} the column out with "
            "--columns"
        )


def numbers_of(values: Any, comma: bool = False) -> Any:
    """A column as numbers, NaN where a field is none.

    Args:
        values: a pandas series.
        comma: whether numbers of the file have decimal commas; text with a point is no number then.

    Example:
        >>> import pandas
        >>> numbers_of(pandas.Series(["1,5", "9.502"]), comma=True).tolist()
        [1.5, nan]
    """
    pandas = import_extra("pandas", "tables")
    if comma and not pandas.api.types.is_numeric_dtype(values):
        fields = values.astype(str)
        points = fields.str.replace(",", ".").where(~fields.str.contains(".", regex=False))
        is_text = values.map(lambda value: isinstance(value, str))  # or true, false, missing
        values = points.where(is_text, values)
    return pandas.to_numeric(values, errors="coerce")


def _without_unit(present: Any) -> Any:
    """Fields without the unit that nearly all of them have after their number."""
    units = present.map(lambda text: found[1] if (found := _UNIT.search(text)) else None)
    counts = units.value_counts()
    if not len(counts) or counts.iloc[0] < _ALWAYS * len(present):
        return present
    return present.where(units != counts.index[0], present.str.replace(_UNIT, "", regex=True))


def _without_marks(text: str, comma: bool = False) -> str:
    """A number without signs of thousands and units, and with a decimal point.

    Example:
        >>> [_without_marks(text) for text in ("$1,200", "0,125", "1.012,5", "1.012.500")]
        ['1200', '0.125', '1012.5', '1012500']
        >>> [_without_marks(text) for text in ("($1,200)", "1.5-", "(a)")]
        ['-1200', '-1.5', '(a)']
    """
    bare = _NEGATIVE.sub(r"-\1\2", _MARKS.sub("", text).replace(_MINUS, "-"))
    grouped = _POINTS.match(bare) and (comma or bare.count(".") > 1)
    if grouped or ("," in bare and not _THOUSANDS.match(bare)):
        return bare.replace(".", "").replace(",", ".")
    return bare.replace(",", "")


def counts_rows(values: Any, rows: Any = None) -> bool:
    """Whether a column numbers the rows: 1, 2, 3 ... or 1001, 1002, 1003 ... or backwards.

    Args:
        values: a pandas series.
        rows: numbers of the rows in the file, where some were drawn; None for all.

    Example:
        >>> import pandas
        >>> counts_rows(pandas.Series([1, 2, 3])), counts_rows(pandas.Series([2, 4, 6]))
        (True, False)
        >>> counts_rows(pandas.Series([2, 4, 7]), rows=[1, 3, 6])
        True
    """
    number = values.to_numpy(np.float64, na_value=np.nan)
    place = np.arange(len(number)) if rows is None else np.asarray(rows)
    if len(number) < 3 or not np.isfinite(number).all():
        return False
    steps, expected = np.diff(number), np.diff(place)
    return bool((steps == expected).all() or (steps == -expected).all())


def are_dates(values: NDArray[np.float64]) -> bool:
    """Whether numbers ``(N,)`` are days of the calendar, written as 20240131.

    Example:
        >>> are_dates(np.array([20240131.0, 20240201.0])), are_dates(np.array([20240131.0, 2e7]))
        (True, False)
    """
    if values.min() < _FIRST_DATE or values.max() > _LAST_DATE or (values != values.round()).any():
        return False
    pandas = import_extra("pandas", "tables")
    text = pandas.Series(np.unique(values)).astype(np.int64).astype(str)
    return bool(pandas.to_datetime(text, format="%Y%m%d", errors="coerce").notna().all())


def names_rows(name: str) -> bool:
    """Whether a column, by its name, says whose a row is.

    Example:
        >>> [name for name in ("id", "PatientID", "user_id", "Patient", "acid") if names_rows(name)]
        ['id', 'PatientID', 'user_id', 'Patient']
        >>> names_rows("subject#"), names_rows("Patient no."), names_rows("patient weight")
        (True, True, False)
    """
    words = set(re.split(r"[\W\d_]+", name.lower()))
    return bool(_ID.search(name) or (words & _GROUPS and words <= _GROUPS | _NUMBER_OF))

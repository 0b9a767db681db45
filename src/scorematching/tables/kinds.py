"""Kinds of columns: numbers, true and false, text, dates, counts of the rows."""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from scorematching._extras import import_extra

_DATE = re.compile(r"\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})")
_MARKS = re.compile(r"[\s%'_$€£¥]")
"""Signs beside the digits of numbers: percents, thousands, currencies."""

_MINUS = "\N{MINUS SIGN}"
"""Which word processors write in place of a hyphen."""

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$")

_MOSTLY = 0.5


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
    return "dates" if all(_DATE.match(text) for text in shown[:100]) else "text"


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


def refuse_almost_numbers(values: Any, name: str) -> None:
    """Refuse a column of text that is mostly numbers: leaving it out would surprise.

    Raises:
        ValueError: with the first value that is no number, and its row.
    """
    pandas = import_extra("pandas", "tables")
    present = values.dropna().astype(str)
    bad = pandas.to_numeric(present, errors="coerce").isna()
    plain = pandas.to_numeric(present.map(_without_marks), errors="coerce")
    if plain.isna().mean() < _MOSTLY <= bad.mean() or not bad.any():
        row = ((bad | (not bad.any())) & plain.notna()).idxmax()
        raise ValueError(
            f"column {name!r} holds numbers as text, such as {present[row]!r} in row "
            f"{int(row) + 1}; write {plain[row]:g} in place of it, or leave the column out with "
            "--columns"
        )
    if bad.mean() < _MOSTLY:
        raise ValueError(
            f"column {name!r} holds numbers except for {present[bad].iloc[0]!r} in row "
            f"{int(bad.idxmax()) + 1} ({int(bad.sum())} in all); write missing values as empty "
            "fields, or leave the column out with --columns"
        )


def _without_marks(text: str) -> str:
    """A number without signs of thousands and units, and with a decimal point.

    Example:
        >>> [_without_marks(text) for text in ("$1,200", "0,125", "1.012,5")]
        ['1200', '0.125', '1012.5']
    """
    bare = _MARKS.sub("", text).replace(_MINUS, "-")
    if "," not in bare or _THOUSANDS.match(bare):
        return bare.replace(",", "")
    return bare.replace(".", "").replace(",", ".")


def counts_rows(values: Any) -> bool:
    """Whether a column numbers the rows: 0, 1, 2 ... or 1, 2, 3 ...

    Example:
        >>> import pandas
        >>> counts_rows(pandas.Series([1, 2, 3])), counts_rows(pandas.Series([2, 4, 6]))
        (True, False)
    """
    number = values.to_numpy(np.float64, na_value=np.nan)
    return bool(len(number) > 2 and number[0] in (0.0, 1.0) and (np.diff(number) == 1).all())

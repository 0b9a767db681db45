"""Whether a first line names the columns, and notes on lines that may mean something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorematching.tables.summary import listed

_COLUMNS, _ROWS = 3, 3
_STEPS, _EQUAL = 5, 0.05
"""Columns whose steps are equal, or that are in order, by chance in few rows, and by how much
rounded steps may differ."""

_MOST, _WHOLE = 0.8, 0.1
"""Share of the columns in which names are far from all rows, and of whole numbers among fractions.
"""

_ROUNDING = 1e-9
_FIRST_YEAR, _LAST_YEAR = 1500, 2100

_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?")
_WITH_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
_ZEROS = re.compile(r"-0,|.*,0\d|.*[eE]")
_SNIFFED = 1000


def perhaps_names(frame: Any) -> str | None:
    """A note if the first row looks like the line of names, such as wavelengths.

    Its numbers are in order, and either their steps are equal, which they are in no other row, or
    they are far from those of all other rows in most columns. Or they are whole, above columns of
    fractions.

    Args:
        frame: a pandas data frame, read without a line of names.

    Example:
        >>> import pandas
        >>> rows = [[400, 402, 404], [0.1, 0.4, 0.2], [0.2, 0.3, 0.3], [0.1, 0.5, 0.4]]
        >>> perhaps_names(pandas.DataFrame(rows)).partition(",")[0]
        'the first line (400'
    """
    numbers = frame[[name for name, dtype in frame.dtypes.items() if dtype.kind in "iuf"]]
    if not numbers.shape[1] or len(frame) <= _ROWS:
        return None
    first = numbers.iloc[0].to_numpy(np.float64)
    if numbers.shape[1] < frame.shape[1]:
        named = _has_years_above_others(first, numbers)
    else:
        enough = frame.shape[1] >= _COLUMNS
        named = enough and (_is_alone_in_order(first, frame) or _is_alone_whole(first, frame))
    return _note_on_names(first, frame) if named else None


def _note_on_names(first: NDArray[np.float64], frame: Any) -> str:
    cells = [f"{v:.12g}" if isinstance(v, Real) else v for v in frame.iloc[0]]
    return (
        f"the first line ({listed(cells)}) looks like names of the columns, but is read as a row: "
        "if it is none, write a letter before each number, as in "
        f"x{first[0]:.12g}, and fit again"
    )


def _has_years_above_others(first: NDArray[np.float64], numbers: Any) -> bool:
    """Whether the first row has years, in order, where few other numbers could be years."""
    if not (_could_be_years(first).all() and _in_order(first[None])[0]):
        return False
    others = numbers.iloc[1:].to_numpy(np.float64)
    return bool((_could_be_years(others).mean(0) < 0.5).all())


def stands_apart(rows: NDArray[np.float64]) -> bool:
    """Whether the numbers of a first line with text name columns, and are no row like the others.

    They are in order, and far from most numbers below, as wavelengths are; or, as in no other row,
    consecutive years, five or more, or in equal steps and mostly outside of the numbers below.

    Args:
        rows: numbers in the first line and below it ``(N, K)``, NaN where a field has none.

    Example:
        >>> below = [[31, 2500], [52, 2100], [45, 3800], [28, 2300]]
        >>> stands_apart(np.array([[30, 2400], *below], dtype=float))
        False
        >>> stands_apart(np.array([[2011, 2012], *below], dtype=float))
        True
    """
    first, others = rows[0], rows[1:]
    again = bool((others == first).any(0).all())
    if again or not _in_order(rows[:1])[0]:
        return False
    if _far(first, others).mean() >= _MOST or _alone(_are_years, first, others):
        return True
    if len(first) >= _STEPS:
        return _alone(_in_order, first, others)
    steps = len(first) >= _COLUMNS and _alone(_have_the_same_steps, first, others)
    return steps and bool(_outside(first, others).mean() > 0.5)


def perhaps_row(names: Sequence[str]) -> str | None:
    """A note if names of columns look like a row: numbers among them, but no years or wavelengths.

    Example:
        >>> perhaps_row(["country", "2001", "2002"]), perhaps_row(["Oslo", "-1.2"]) is None
        (None, False)
        >>> perhaps_row(["Oslo", "12", "300"]) is None
        False
        >>> perhaps_row(["index", "0"]), perhaps_row(["Oslo", "12"]) is None
        (None, False)
    """
    found = [name for name in names if _NUMBER.fullmatch(name)]
    numbers = [float(name.replace(",", ".")) for name in found]
    if not found or (min(numbers) >= 0 and _count_or_measure(np.array(numbers))):
        return None
    return (
        f"the first line ({listed(names)}) is read as names of the columns: if it is a row, write "
        "a line of names above it"
    )


def _count_or_measure(numbers: NDArray[np.float64]) -> bool:
    """Whether names are years, wavelengths or numbers from 0, which hardly any row would be."""
    if len(numbers) == 1:
        return bool(numbers[0] == 0 or _could_be_years(numbers)[0])
    rows = numbers[None]
    steps = len(numbers) >= _COLUMNS and _have_equal_steps(rows)[0]
    several = steps or len(numbers) >= _STEPS or _are_years(rows)[0]
    return bool(_in_order(rows)[0] and several)


def perhaps_decimals(lines: Iterable[str]) -> str | None:
    """A note if two columns, separated by a comma, look like numbers with decimal commas.

    All are whole, those after the comma have no sign, and zeros are where numbers have none.

    Example:
        >>> perhaps_decimals(["0,25", "-3,075"]).partition(":")[0]
        'the first line (0,25) is read as two columns'
        >>> perhaps_decimals(["0,25", "-3,75"]) is None
        True
    """
    found = [line.strip() for line in islice((each for each in lines if each.strip()), _SNIFFED)]
    whole = all(map(_WITH_COMMA.fullmatch, found))
    if not whole or not any(map(_ZEROS.match, found)):
        return None
    return (
        f"the first line ({found[0]}) is read as two columns: if it is one number with a decimal "
        "comma, write points"
    )


def _is_alone_in_order(first: NDArray[np.float64], frame: Any) -> bool:
    """Whether the first row is in order, with equal steps or far from all others."""
    if not _in_order(first[None])[0]:
        return False
    others = frame.iloc[1:].to_numpy(np.float64)
    return _alone_has_equal_steps(first, others) or bool(_far(first, others).mean() >= _MOST)


def _is_alone_whole(first: NDArray[np.float64], frame: Any) -> bool:
    """Whether the first row has different positive whole numbers, above columns of fractions."""
    if not ((first > 0).all() and (first == np.round(first)).all()):
        return False
    others = frame.iloc[1 : _SNIFFED + 1].to_numpy(np.float64)
    whole = others == np.round(others)
    fractions = not whole.all(1).any() and bool((whole.mean(0) <= _WHOLE).all())
    return fractions and len(np.unique(first)) == len(first)


def _alone_has_equal_steps(first: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    """Whether the columns of the first row have equal steps, and those of no other row."""
    return len(first) >= _STEPS and _alone(_have_equal_steps, first, others)


def _alone(
    holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
    first: NDArray[np.float64],
    others: NDArray[np.float64],
) -> bool:
    """Whether something holds for the first row, and for no other."""
    return bool(holds(first[None])[0]) and not holds(others).any()


def _in_order(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    steps = np.diff(rows, axis=1)
    found: NDArray[np.bool_] = np.logical_or((steps > 0).all(1), (steps < 0).all(1))
    return found


def _are_years(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows are consecutive years, two or more."""
    consecutive = (np.abs(np.diff(rows, axis=1)) == 1).all(1)
    found: NDArray[np.bool_] = _could_be_years(rows).all(1) & consecutive & (rows.shape[1] > 1)
    return found


def _could_be_years(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (numbers >= _FIRST_YEAR) & (numbers < _LAST_YEAR) & (numbers == np.round(numbers))


def _have_the_same_steps(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows have equal steps to rounding errors, which few of three numbers have by chance."""
    return _have_equal_steps(rows, _ROUNDING)


def _have_equal_steps(rows: NDArray[np.float64], tolerance: float = _EQUAL) -> NDArray[np.bool_]:
    steps = np.diff(rows, axis=1)
    mean = steps.mean(1, keepdims=True)
    found: NDArray[np.bool_] = (np.abs(steps - mean) <= tolerance * np.abs(mean)).all(1)
    return found


def _far(first: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Columns in which a row is farther from all others than these are from each other."""
    low, high = np.fmin.reduce(others), np.fmax.reduce(others)
    found: NDArray[np.bool_] = np.maximum(low - first, first - high) > high - low
    return found


def _outside(first: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Columns in which a row is below or above all others."""
    found: NDArray[np.bool_] = (first < np.fmin.reduce(others)) | (first > np.fmax.reduce(others))
    return found

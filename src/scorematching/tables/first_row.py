"""Notes on lines that may mean something else than they were read as."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorematching.tables.summary import listed

_COLUMNS, _ROWS = 3, 3
_STEPS, _EQUAL = 5, 0.05
"""Columns whose steps are equal by chance in few rows, and by how much rounded steps may differ."""

_MOST, _WHOLE = 0.8, 0.1
"""Share of the columns in which names are far from all rows, and of whole numbers among fractions.
"""

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
    numeric = all(dtype.kind in "iuf" for dtype in frame.dtypes)
    if not numeric or frame.shape[1] < _COLUMNS or len(frame) <= _ROWS:
        return None
    first = frame.iloc[0].to_numpy(np.float64)
    if not (_is_alone_in_order(first, frame) or _is_alone_whole(first, frame)):
        return None
    return (
        f"the first line ({listed(f'{number:.12g}' for number in first)}) looks like names of the "
        "columns, but is read as a row: if it is none, write a letter before each, as in "
        f"x{first[0]:.12g}, and fit again"
    )


def perhaps_row(names: Sequence[str]) -> str | None:
    """A note if names of columns look like a row: numbers among them, but no years or wavelengths.

    Example:
        >>> perhaps_row(["country", "2001", "2002"]), perhaps_row(["Oslo", "-1.2"]) is None
        (None, False)
        >>> perhaps_row(["index", "0"]), perhaps_row(["Oslo", "12"]) is None
        (None, False)
    """
    found = [name for name in names if _NUMBER.fullmatch(name)]
    numbers = [float(name.replace(",", ".")) for name in found]
    in_order = sorted(set(numbers)) in (numbers, numbers[::-1])
    alone = len(found) == 1 and not (numbers[0] == 0 or _FIRST_YEAR <= numbers[0] < _LAST_YEAR)
    plain = (all(name.isdigit() for name in found) and not alone) or len(found) >= _COLUMNS
    if not found or (in_order and plain and min(numbers) >= 0):
        return None
    return (
        f"the first line ({listed(names)}) is read as names of the columns: if it is a row, write "
        "a line of names above it"
    )


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
    steps = np.diff(first)
    if not ((steps > 0).all() or (steps < 0).all()):
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
    if len(first) < _STEPS or not _have_equal_steps(first[None])[0]:
        return False
    return not _have_equal_steps(others).any()


def _have_equal_steps(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    steps = np.diff(rows, axis=1)
    mean = steps.mean(1, keepdims=True)
    found: NDArray[np.bool_] = (np.abs(steps - mean) < _EQUAL * np.abs(mean)).all(1)
    return found


def _far(first: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Columns in which a row is farther from all others than these are from each other."""
    low, high = np.fmin.reduce(others), np.fmax.reduce(others)
    found: NDArray[np.bool_] = np.maximum(low - first, first - high) > high - low
    return found

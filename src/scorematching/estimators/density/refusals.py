"""Refusals of tables that are not numbers, with the column or the place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from scorematching.estimators.density.table import Table

_SHOWN = 5
_LEAST, _MOST = 1e-100, 1e100
MAX_DISTANCE = 1e50
_MIN_POINTS, _MIN_LOSS = 4, -1e12
"""The least loss per column is that of peaks of a width of 1e-6 standard deviations; columns that
others determine so well are set aside, too."""


def refuse_categories(X: Any) -> None:
    """Refuse data frames with columns that are not numbers."""
    dtypes = getattr(X, "dtypes", None)
    if not hasattr(dtypes, "items") or not hasattr(X, "iloc"):
        return
    kinds = enumerate(cast("Any", dtypes).items())
    bad = [f"{name!r} ({kind})" for i, (name, kind) in kinds if not _holds_numbers(X, i, kind)]
    if bad:
        raise ValueError(
            f"X must hold numbers, got categories, dates or text in {', '.join(bad[:_SHOWN])}; "
            "convert numbers that are stored as text with astype(float), fit one density for each "
            "category, or encode them (sklearn.preprocessing.OrdinalEncoder) and pass "
            "dequantise=True"
        )


def _holds_numbers(frame: Any, column: int, kind: Any) -> bool:
    """Whether a column of a data frame can be converted; columns of objects are tried."""
    if str(kind) in ("category", "string", "str") or getattr(kind, "kind", "O") in "mMc":
        return False
    if getattr(kind, "kind", "O") in "biuf":
        return True
    try:
        frame.iloc[:, column].astype(float)
    except (TypeError, ValueError):
        return False
    return True


def refuse_text(X: Any) -> None:
    """Refuse arrays and lists with a value that is no number, with the place of the first one."""
    table = np.array(X, dtype=object) if isinstance(X, list) else X
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind not in "OUS":
        return
    for row, values in enumerate(table):
        for column, value in enumerate(values):
            if (error := _conversion_error(value)) is not None:
                shown = repr(str(value)) if isinstance(value, str | bytes) else repr(value)
                why = f" ({error})" if isinstance(error, TypeError) else ""
                raise type(error)(
                    f"X must hold numbers, got {shown} in row {row}, column {column}{why}; drop "
                    "the column, or encode it (sklearn.preprocessing.OrdinalEncoder) and pass "
                    "dequantise=True"
                )


def _conversion_error(value: Any) -> TypeError | ValueError | None:
    """Why a value is no number; what Python and pandas call missing is found later."""
    if value is None or type(value).__name__ == "NAType":
        return None
    try:
        float(value)
    except (TypeError, ValueError) as error:
        return error
    return None


def refuse_missing(values: NDArray[Any], names: Sequence[Any] | None) -> None:
    """Refuse values that are not finite, with the place of the first one."""
    bad = ~np.isfinite(values)
    if not bad.any():
        return
    row, column = (int(place[0]) for place in bad.nonzero())
    kind = "NaN" if values[row, column] != values[row, column] else "infinity"
    raise ValueError(
        f"X must be finite, got {kind} in row {row}, column {_name(names, column)} (NaN or inf in "
        f"{int(bad.sum())} places of {int(bad.any(1).sum())} rows); drop these rows, or fill them "
        "in first, for example with sklearn.impute.SimpleImputer"
    )


def refuse_units(values: NDArray[Any], names: Sequence[Any] | None) -> None:
    """Refuse columns whose squares would overflow, or vanish."""
    spread = np.abs(values).max(0, initial=0.0).astype(np.float64)
    bad = (spread > _MOST) | ((spread < _LEAST) & (spread > 0))
    if bad.any():
        column = int(bad.argmax())
        raise ValueError(
            f"X must have columns between {_LEAST:g} and {_MOST:g} in size, got "
            f"{spread[column]:.3g} in column {_name(names, column)}; change its unit"
        )


def refuse_few(rows: int, table: Table, model: str) -> None:
    """Refuse tables with too few different rows, or too few columns for the model."""
    count = rows - table.repeated
    if count < _MIN_POINTS:
        raise ValueError(
            f"X must hold {_MIN_POINTS} different points or more, got {count} with "
            f"n_samples = {rows}; some of them are held out"
        )
    if model == "nice" and len(table.kept) < 2:
        raise ValueError(
            'X must have two columns or more for model="nice", got n_features = 1; use model="mlp"'
        )


def refuse_peaks(losses: Tensor, table: Table) -> None:
    """Refuse score-matching losses that only narrow peaks on single values can have."""
    loss = losses.mean().item()
    if loss < _MIN_LOSS * len(table.kept):
        raise ValueError(
            f"X must have a density, got a score-matching loss of {loss:.3g}, that of peaks "
            "narrower than 1e-6 standard deviations, in "
            f"{table.name(table.discrete or table.kept)} pass dequantise=True for discrete "
            "columns, drop columns that are functions of others, or take logarithms of columns "
            "that cover many orders of magnitude"
        )


def refuse_far(s: Tensor, table: Table) -> None:
    """Refuse standardised points so far away that squares overflow, with the place."""
    far = s.abs() > MAX_DISTANCE
    if bool(far.any()):
        row, column = (int(place[0]) for place in far.nonzero(as_tuple=True))
        raise ValueError(
            f"X must lie within {MAX_DISTANCE:g} standard deviations of the rows of fit, got "
            f"{s[row, column].item():.3g} in row {row}, column {table.names[table.kept[column]]}; "
            "drop such rows"
        )


def _name(names: Sequence[Any] | None, column: int) -> str:
    return repr(names[column]) if names is not None else str(column)

"""All pairs of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch

from scorematching._checks import check_type
from scorematching._rows import some_rows
from scorematching.plot.asking import (
    Array,
    check_columns,
    label_of,
    names_of,
    samples_of,
    to_points,
)
from scorematching.plot.canvas import padded, pyplot, tidy
from scorematching.plot.palette import DATA, SAMPLES

_MAX_COLUMNS, _MAX_DOTS, _BINS = 6, 1000, 24


def pairs(
    data: Any,
    samples: Any = None,
    axes: Any = None,
    *,
    columns: Sequence[int | str] | None = None,
    names: Sequence[str] | None = None,
) -> Any:
    """Draw every column against every other, data beside samples of a model.

    Histograms stand on the diagonal and points below it, at most 1000 of each kind.
    The area of a histogram is the share of points in the range of the data.

    Args:
        data: points ``(N, D)``: an array, a data frame or a tensor.
        samples: points of a model, ``(M, D)``; None draws the data alone.
        axes: axes of matplotlib, ``(k, k)`` for k columns; None makes new ones.
        columns: indices of the columns, or their names in a data frame; None takes the first six.
        names: of all D columns; None takes those of a data frame.

    Returns:
        The axes, ``(k, k)``.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if shapes do not fit each other.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3))
        >>> pairs(x, x + 0.1).shape
        (3, 3)
    """
    x = to_points(data)
    y = None if samples is None else samples_of(samples, data)
    if y is not None:
        check_columns(x, y)
    chosen = _choose(columns, x.shape[1], list(getattr(data, "columns", ())))
    titles = names_of(data, x.shape[1]) if names is None else [*map(label_of, names)]
    if len(titles) != x.shape[1]:
        raise ValueError(
            f"names must hold one name for each of the {x.shape[1]} columns, got {len(titles)}; "
            "leave them out for those of a data frame"
        )
    grid = _grid(axes, len(chosen))
    for i, row in enumerate(chosen):
        for j, column in enumerate(chosen):
            _panel(grid[i, j], x, y, row, column)
            grid[i, j].set_xlabel(titles[column] if i == len(chosen) - 1 else "")
            grid[i, j].set_ylabel(titles[row] if j == 0 and i > 0 else "")
    if y is not None:
        _legend(grid)
    return grid


def _choose(columns: Sequence[int | str] | None, dim: int, names: Sequence[Any]) -> list[int]:
    if columns is None:
        return list(range(min(dim, _MAX_COLUMNS)))
    wanted, advice = "columns must be a sequence of names or indices", "for example (0, 2)"
    check_type(columns, Iterable, wanted, advice)
    columns = list(columns)
    for column in columns:
        check_type(column, (str, Integral), wanted, advice)
    chosen = [_index(column, names) for column in columns]
    if not chosen or not all(0 <= column < dim for column in chosen):
        raise ValueError(
            f"columns must be names in a data frame, or indices from 0 to {dim - 1}, got "
            f"{columns}; leave them out for the first six"
        )
    return chosen


def _index(column: int | str, names: Sequence[Any]) -> int:
    """The index of a column; -1 for an unknown name."""
    if isinstance(column, str):
        return names.index(column) if column in names else -1
    return int(column)


def _grid(axes: Any, k: int) -> Any:
    if axes is None:
        size = 1.6 * k + 0.8
        axes = pyplot().subplots(k, k, figsize=(size, size), layout="constrained", squeeze=False)[1]
    grid = np.atleast_2d(np.asarray(axes, dtype=object))
    if grid.shape != (k, k):
        raise ValueError(
            f"axes must have shape ({k}, {k}) for {k} columns, got {grid.shape}; pass "
            f"plt.subplots({k}, {k}, squeeze=False)[1]"
        )
    return grid


def _panel(ax: Any, x: Array, y: Array | None, row: int, column: int) -> None:
    """A histogram on the diagonal, points below it, nothing above."""
    limits = [padded(*np.quantile(x[:, k], [0.002, 0.998])) for k in (column, row)]
    sets = ([] if y is None else [(y, SAMPLES, "samples")]) + [(x, DATA, "data")]
    if column > row:
        ax.set_axis_off()
        return
    for points, colour, label in sets:
        if row == column:
            low, high = limits[0]
            # The area is the share of points in the range, so that lost samples are missed.
            each = np.full(len(points), _BINS / (len(points) * (high - low)))
            look = {"color": colour, "histtype": "step", "weights": each, "linewidth": 1.2}
            ax.hist(points[:, row], bins=_BINS, range=limits[0], label=label, **look)
        else:
            dots = some_rows(torch.arange(len(points)), _MAX_DOTS).numpy()
            shown = points[dots][:, [column, row]]
            size = 4 if len(shown) > 100 else 12
            ax.scatter(*shown.T, s=size, alpha=0.4, linewidths=0, color=colour, label=label)
    ax.set_xlim(limits[0])
    ax.tick_params(labelsize="x-small")
    if row == column:
        ax.set_yticks([])
    else:
        ax.set_ylim(limits[1])
    tidy(ax)


def _legend(grid: Any) -> None:
    """In the empty upper right corner, or above a single histogram."""
    handles, labels = grid[0, 0].get_legend_handles_labels()
    if len(grid) > 1:
        grid[0, -1].legend(handles, labels, loc="upper right", frameon=False)
    else:
        anchor = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 2}
        grid[0, 0].legend(handles, labels, frameon=False, borderaxespad=0.2, **anchor)

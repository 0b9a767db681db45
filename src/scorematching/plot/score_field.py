"""The score as arrows on a plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from scorematching._checks import check_count, check_positive
from scorematching._rows import some_rows
from scorematching.plot.asking import Array, names_of, score_at, to_points
from scorematching.plot.canvas import axes_or_new, padded, tidy
from scorematching.plot.palette import DATA, SAMPLES
from scorematching.plot.plane import Plane

_MAX_DOTS = 2000


def score_field(
    model: Any, data: Any, *, ax: Any = None, num: int = 19, reach: float | None = 0.5
) -> Any:
    """Draw the score of a model as arrows, and the data.

    With one column the score is a curve. With more than two, the arrows are those of the plane
    through the mean along the first two principal directions of the standardised columns, on which
    the data are projected. Lengths grow with the square root of the score, because scores far out
    are much longer than those in the middle.

    Args:
        model: an estimator with ``grad_log_density``, a result of `scorematching.inference.fit`,
            a field, or a log-density of tensors ``(N, D) -> (N,)``; a score network must be
            wrapped in `VectorField`.
        data: points ``(N, D)``: an array, a data frame or a tensor, whose dtype and device the
            model is then called with.
        ax: axes of matplotlib; None makes new ones.
        num: arrows along each axis.
        reach: draw arrows only within this many standard deviations of some data point, where the
            data say something about the score; None draws all.

    Returns:
        The axes.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if the model has no score.
        ValueError: if data are empty or not finite.

    Example:
        >>> import torch
        >>> x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
        >>> score_field(lambda x: -0.5 * x.square().sum(-1), x).get_ylabel()
        'x2'
    """
    check_count(num, "num", "19 suits most pictures")
    x = to_points(data)
    if reach is not None:
        check_positive(reach, "reach", "0.5 suits most data")
    ax, names = axes_or_new(ax, (5.4, 4.6)), names_of(data, x.shape[1])
    if x.shape[1] == 1:
        _line(ax, model, x, data, names[0])
    else:
        _arrows(ax, model, x, data, Plane.of(x, names), num, reach)
    tidy(ax)
    return ax


def _line(ax: Any, model: Any, x: Array, data: Any, name: str) -> None:
    low, high = padded(float(x.min()), float(x.max()))
    grid = np.linspace(low, high, 400)
    ax.plot(grid, score_at(model, grid[:, None], data)[:, 0], color=SAMPLES)
    ax.plot(x[:, 0], np.zeros(len(x)), "|", color=DATA, alpha=0.5)
    ax.set(xlabel=name, ylabel="score", xlim=(low, high))


def _arrows(
    ax: Any, model: Any, x: Array, data: Any, plane: Plane, num: int, reach: float | None
) -> None:
    """Data, and arrows where there are data."""
    a, b, pairs = plane.grid(x, num)
    shown = plane.coordinates(x[some_rows(torch.arange(len(x)), _MAX_DOTS).numpy()])
    pairs = _near(pairs, shown, plane, reach)
    arrows = plane.arrows(score_at(model, plane.points(pairs), data))
    known = np.isfinite(arrows).all(1)
    if not known.any():
        raise ValueError(
            "model must have a finite score somewhere near the data, got none; is it on the scale "
            "of these data?"
        )
    pairs, arrows = pairs[known], arrows[known]
    lengths = plane.lengths(arrows)
    arrows = arrows / np.sqrt(np.maximum(lengths, 1e-12))[:, None]
    longest = np.sqrt(lengths.max()) if lengths.max() > 0 else 1.0
    # The longest arrow spans one and a half cells of the grid.
    cell = plane.lengths(np.array([[a[1] - a[0], b[1] - b[0]]]))[0] / np.sqrt(2)
    ax.scatter(*shown.T, s=6 if len(shown) > 400 else 14, alpha=0.5, linewidths=0, color=DATA)
    look = {"angles": "xy", "scale_units": "xy", "width": 0.0035, "color": SAMPLES}
    ax.quiver(*pairs.T, *arrows.T, scale=longest / (1.5 * cell), **look)
    ax.set(xlabel=plane.labels[0], ylabel=plane.labels[1])
    ax.set(xlim=padded(a[0], a[-1], 0.03), ylim=padded(b[0], b[-1], 0.03))


def _near(pairs: Array, shown: Array, plane: Plane, reach: float | None) -> Array:
    """Grid points close to data; all of them if none is."""
    if reach is None:
        return pairs
    units = plane.scale if plane.flat else np.ones(2)
    distances = [np.square((pairs - row) / units).sum(1) for row in shown]
    near = np.min(distances, axis=0) <= reach**2
    return pairs[near] if near.any() else pairs

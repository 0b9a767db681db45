"""A log-density on a line or on a plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from scorematching._checks import check_count, check_positive
from scorematching._rows import some_rows
from scorematching.plot.asking import Array, log_density_at, names_of, to_points
from scorematching.plot.canvas import axes_or_new, legend_below, padded, tidy
from scorematching.plot.palette import DATA, SAMPLES
from scorematching.plot.plane import Plane

_DEPTH, _MAX_DOTS = 12.0, 2000


def density(
    model: Any,
    data: Any,
    *,
    ax: Any = None,
    num: int = 121,
    depth: float = _DEPTH,
    colorbar: bool = True,
    label: str = "model",
) -> Any:
    """Draw a log-density and the data.

    With one column: the density as a curve, normalised over the interval that is shown, above a
    histogram. With two: contours of the log-density less its maximum. With more: the same on the
    plane through the mean along the first two principal directions of the standardised columns,
    on which the data are projected.

    Args:
        model: an estimator with ``score_samples``, a result of `scorematching.inference.fit`, a
            `LogDensityField`, or a log-density of tensors ``(N, D) -> (N,)``.
        data: points ``(N, D)``: an array, a data frame or a tensor, whose dtype and device the
            model is then called with.
        ax: axes of matplotlib; None makes new ones.
        num: grid points along each axis.
        depth: contours reach from the maximum down by this much.
        colorbar: add a scale of the contours.
        label: of the curve, for one column.

    Returns:
        The axes.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if the model has no log-density.
        ValueError: if data are empty or not finite, or the log-density is finite nowhere.

    Example:
        >>> import torch
        >>> x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
        >>> density(lambda x: -0.5 * x.square().sum(-1), x).get_xlabel()
        'x1'
    """
    check_count(num, "num", "121 suits most pictures")
    check_positive(depth, "depth", "12.0 suits most densities")
    x = to_points(data)
    ax, names = axes_or_new(ax), names_of(data, x.shape[1])
    if x.shape[1] == 1:
        _line(ax, model, x, data, names[0], num, label)
    else:
        _contours(ax, model, x, data, Plane.of(x, names), num, depth, colorbar)
    return ax


def _line(ax: Any, model: Any, x: Array, data: Any, name: str, num: int, label: str) -> None:
    """A histogram, and the density normalised over the interval."""
    low, high = padded(float(x.min()), float(x.max()), 0.15)
    grid = np.linspace(low, high, max(num, 400))
    values = log_density_at(model, grid[:, None], data)
    heights = np.exp(_finite(values) - values[np.isfinite(values)].max())
    heights = np.where(np.isfinite(values), heights, 0.0)
    heights /= (0.5 * (heights[1:] + heights[:-1]) * np.diff(grid)).sum()
    bins = min(60, max(10, int(2 * len(x) ** (1 / 3))))
    ax.hist(x[:, 0], bins=bins, range=(low, high), density=True, color="0.85", label="data")
    ax.plot(grid, heights, color=SAMPLES, label=label)
    ax.set(xlabel=name, ylabel="density", xlim=(low, high), ylim=(0, None))
    tidy(ax)
    legend_below(ax)


def _contours(
    ax: Any, model: Any, x: Array, data: Any, plane: Plane, num: int, depth: float, colorbar: bool
) -> None:
    """Contours on the plane, and projected data."""
    a, b, pairs = plane.grid(x, num)
    values = _finite(log_density_at(model, plane.points(pairs), data))
    heights = (values - values.max()).reshape(num, num)
    depth = min(depth, -heights.min()) or depth
    levels = np.linspace(-depth, 0.0, 13)
    # Only the lighter half of the colours, so that points are seen on all of them.
    look = {"cmap": "Blues", "extend": "min", "vmin": -depth, "vmax": 0.7 * depth}
    filled = ax.contourf(a, b, heights, levels, **look)
    shown = plane.coordinates(x[some_rows(torch.arange(len(x)), _MAX_DOTS).numpy()])
    dots = {"s": 6 if len(shown) > 50 else 20, "alpha": 0.6, "linewidths": 0, "color": DATA}
    ax.scatter(*shown.T, **dots)
    ax.set(xlabel=plane.labels[0], ylabel=plane.labels[1], xlim=a[[0, -1]], ylim=b[[0, -1]])
    tidy(ax)
    if colorbar:
        ticks = np.linspace(-depth, 0.0, 5)
        bar = ax.figure.colorbar(filled, ax=ax, label="log-density, less its maximum", ticks=ticks)
        bar.set_ticklabels([f"{tick:.3g}" for tick in ticks])


def _finite(values: Array) -> Array:
    """Values with the lowest in place of those that are not finite."""
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError(
            "model must have a finite log-density somewhere near the data, got none; is it on the "
            "scale of these data?"
        )
    return np.where(finite, values, values[finite].min())

"""Whether held-out points look like samples of a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scorematching._checks import check_count, is_number
from scorematching.plot.asking import (
    Array,
    check_columns,
    log_density_at,
    names_of,
    samples_of,
    to_points,
)
from scorematching.plot.canvas import axes_or_new, legend_below, tidy
from scorematching.plot.palette import FAINT, INK, SAMPLES
from scorematching.plot.plane import Plane


def calibration(
    model: Any,
    data: Any,
    ax: Any = None,
    *,
    samples: Any = None,
    num_samples: int = 2000,
    level: float = 0.95,
    random_state: Any = 0,
) -> Any:
    """Draw the ranks of held-out points among samples of the model.

    Where the model is right, held-out points are distributed as its samples are, and so is any
    number computed from them: the log-density, and the coordinates along the two principal
    directions. For each, the share of held-out points whose rank among the samples is at most r is
    drawn against r. The band holds all curves with probability ``level`` if the model is right
    (Kolmogorov and Smirnov's test for two samples, asymptotically, with Bonferroni's correction
    for the number of curves). A curve of the log-density above the diagonal means that data lie
    further out than the model's samples.

    Args:
        model: an estimator with ``score_samples``, a field, or a log-density of tensors; None
            compares coordinates alone, for which samples are enough.
        data: points ``(N, D)`` that the model was not fitted to.
        ax: axes of matplotlib; None makes new ones.
        samples: points of the model ``(M, D)``; None draws them by its method ``sample``.
        num_samples: M, if they are drawn.
        level: probability of the band.
        random_state: seed of ``model.sample``.

    Returns:
        The axes.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if there are neither samples nor a method that draws them.
        ValueError: if shapes do not fit each other, or level is no probability.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> calibration(None, x[:100], samples=x[100:]).get_xlabel()
        'rank among samples of the model'
    """
    if not is_number(level) or not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}; 0.95 is usual")
    x, y = to_points(data), _samples(model, samples, data, num_samples, random_state)
    check_columns(x, y)
    curves = _numbers(model, x, y, data)
    ax = axes_or_new(ax, (4.8, 4.8))
    _draw_band(ax, band(len(x), len(y), level, len(curves)), level)
    for (name, a, b), look in zip(curves, _looks(model is not None)):
        shown = f" {name}" if name.startswith("_") else name  # matplotlib hides such labels
        ax.step(*rank_curve(a, b), where="post", label=shown, **look)
    ax.set(xlabel="rank among samples of the model", ylabel="share of held-out points")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    tidy(ax)
    legend_below(ax, columns=2)
    return ax


def _draw_band(ax: Any, half: float, level: float) -> None:
    r = np.array([0.0, 1.0])
    ax.fill_between(r, r - half, r + half, color="0.92", label=f"{100 * level:g}% band")
    ax.plot(r, r, color=INK, linewidth=0.8, linestyle=":")


def band(num_points: int, num_samples: int, level: float, curves: int = 1) -> float:
    """Half the height of the band: the critical value of the two-sample statistic."""
    alpha = (1 - level) / curves
    size = num_points * num_samples / (num_points + num_samples)
    return math.sqrt(-0.5 * math.log(alpha / 2) / size)


def rank_curve(a: Array, b: Array) -> tuple[Array, Array]:
    """Ranks of a among b, sorted, between 0 and 1, and the shares of a up to each."""
    ordered = np.sort(b)
    ranks = np.sort(0.5 * (ordered.searchsorted(a, "left") + ordered.searchsorted(a, "right")))
    shares = np.arange(len(a) + 1) / len(a)
    return np.concatenate([[0.0], ranks / len(b), [1.0]]), np.concatenate([shares, [1.0]])


def _samples(model: Any, samples: Any, data: Any, num: int, random_state: Any) -> Array:
    if samples is not None:
        return samples_of(samples, data)
    check_count(num, "num_samples", "2000 suits most pictures")
    if not hasattr(model, "grad_log_density") or not hasattr(model, "sample"):
        raise TypeError(
            f"samples must be given for {type(model).__name__}, which is no estimator that draws "
            "them; pass samples=, for example of scorematching.samplers"
        )
    return to_points(model.sample(num, random_state=random_state), "samples")


def _numbers(model: Any, x: Array, y: Array, like: Any) -> list[tuple[str, Array, Array]]:
    """The numbers that are compared: a name, those of held-out points and those of samples."""
    found: list[tuple[str, Array, Array]] = []
    if model is not None:
        found = [("log-density", log_density_at(model, x, like), log_density_at(model, y, like))]
    if x.shape[1] == 1:
        return [*found, (names_of(like, 1)[0], x[:, 0], y[:, 0])]
    plane = Plane.of(y, names_of(like, y.shape[1]))
    labels = plane.labels if plane.flat else [label.split(" (")[0] for label in plane.labels]
    return [*found, *zip(labels, plane.coordinates(x).T, plane.coordinates(y).T)]


def _looks(with_density: bool) -> list[dict[str, Any]]:
    faint = [{"color": FAINT, "linestyle": line, "linewidth": 1.3} for line in ("-", "--")]
    return [{"color": SAMPLES}, *faint] if with_density else faint

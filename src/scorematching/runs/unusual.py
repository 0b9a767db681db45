"""Unusual rows: those where the density is least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorematching.runs.goodness import whitened_score
from scorematching.runs.space import Space

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RowScores:
    """What a model says about rows.

    Attributes:
        log_density: at every row, ``(N,)``; NaN for a model of the score alone.
        error: standard error of the log-density, ``(N,)``, which comes from log Z.
        gradient: the score in the units of the columns that the model takes, ``(N, D)``.
        rank: 1 for the most unusual row, ``(N,)``.
        column: the column along which the log-density rises most per standard deviation, towards
            more usual values, ``(N,)``.
    """

    log_density: Array
    error: Array
    gradient: Array
    rank: NDArray[np.int64]
    column: list[str]


def score_rows(model: Any, space: Space, frame: Any) -> RowScores:
    """Log-density, score and rank of rows.

    Rows are ranked by log-density, or for a model of the score alone by the length of the score at
    whitened rows, which is large far out.

    Args:
        model: a fitted estimator.
        space: of the modelled columns.
        frame: rows with the columns that the model takes, without missing values.
    """
    gradient = np.asarray(model.grad_log_density(frame))
    x = space.rows(frame)
    if hasattr(model, "score_samples"):
        order, log_density, error = _log_densities(model, frame)
    else:
        order = -whitened_score(model, space, space.z(x)).norm(dim=1).numpy()
        log_density = error = np.full(len(frame), np.nan)
    rank = np.empty(len(frame), dtype=np.int64)
    rank[np.argsort(order, kind="stable")] = np.arange(1, len(frame) + 1)
    names = [str(name) for name in frame.columns]
    modelled = [names.index(name) for name in space.columns]
    pull = np.abs(gradient[:, modelled]) * space.scaling.std.numpy()
    column = [space.columns[i] for i in pull.argmax(1)]
    return RowScores(log_density, error, gradient, rank, column)


def _log_densities(model: Any, frame: Any) -> tuple[Array, Array, Array]:
    """What rows are ranked by, and log-densities with errors, NaN where log Z is unknown."""
    order = np.asarray(model.unnormalised_log_density(frame))
    try:
        return order, *model.score_samples(frame, return_error=True)
    except ValueError:
        unknown = np.full(len(order), np.nan)
        return order, unknown, unknown

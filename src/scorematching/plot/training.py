"""Losses over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scorematching.plot.canvas import axes_or_new, legend_below, padded, tidy
from scorematching.plot.palette import FAINT, style
from scorematching.training.progress import read_log

Pairs = list[tuple[float, float]]


def training(
    run: Any,
    ax: Any = None,
    *,
    label: str | None = None,
) -> Any:
    """Draw the losses of a run.

    Training losses are means over batches since the record before; bars of validation losses are
    their standard errors, where records have them. A single record is drawn as a point. Losses of
    the first steps that are far above all others are cut off.

    Args:
        run: a `scorematching.training.TrainResult`, its history, a fitted estimator, the events of
            `scorematching.training.read_log`, or the path of a ``log.jsonl`` or of its folder.
        ax: axes of matplotlib; None makes new ones.
        label: name of the method, which decides the colour; None is plain "validation".

    Returns:
        The axes.

    Raises:
        ImportError: if matplotlib is not installed.
        TypeError: if run is none of these.
        ValueError: if it has no records.

    Example:
        >>> from scorematching.training import Record
        >>> records = [Record(step, 1.0 / step, 1e-3, 0.1, 2.0 / step) for step in (10, 20)]
        >>> training(records).get_xlabel()
        'step'
    """
    losses, validation, errors = _curves(run)
    ax = axes_or_new(ax)
    name, look = f"{label}: " if label else "", style(label or "SSM-VR")
    _curve(ax, losses, color=FAINT, label=f"{name}training batches")
    if validation:
        _curve(ax, validation, color=look.color, label=f"{name}validation", zorder=3)
        bars = {"fmt": "none", "ecolor": look.color, "alpha": 0.6, "capsize": 2}
        ax.errorbar(*zip(*validation), yerr=errors, **bars)
        best = min(validation, key=lambda pair: pair[1])
        mark = f"{name}best: step {best[0]:g}"
        ax.plot(*best, "o", color=look.color, markersize=7, fillstyle="none", label=mark)
    ax.set(xlabel="step", ylabel="loss", ylim=_limits(losses, validation))
    tidy(ax)
    legend_below(ax)
    return ax


def _curves(run: Any) -> tuple[Pairs, Pairs, list[float]]:
    """Finite training and validation losses by step, and errors of the latter or zeros."""
    records = [_fields(record) for record in _records(run)]
    losses, validation = (
        [record for record in records if _is_finite(record.get(key))]
        for key in ("loss", "validation")
    )
    if not losses and not validation:
        raise ValueError(
            f"run must have records with finite losses, got {len(records)} records without; train "
            "for log_every steps or more"
        )
    errors = [record.get("validation_error") for record in validation]
    return (
        [(float(record["step"]), float(record["loss"])) for record in losses],
        [(float(record["step"]), float(record["validation"])) for record in validation],
        [float(error) if error is not None and _is_finite(error) else 0.0 for error in errors],
    )


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _records(run: Any) -> list[Any]:
    if isinstance(run, (str, Path)):
        path = Path(run)
        path = path / "log.jsonl" if path.is_dir() else path
        if not path.exists():
            raise FileNotFoundError(f"run must be a log.jsonl or a folder with one, got {path}")
        run = read_log(path)
    run = getattr(run, "result_", run)  # of estimators
    run = getattr(run, "history", getattr(run, "history_", run))
    wanted = "run must be a TrainResult, a fitted estimator, a list of records or a path, got "
    if not isinstance(run, Sequence):
        raise TypeError(f"{wanted}{type(run).__name__}")
    others = {
        type(r).__name__ for r in run if not isinstance(r, Mapping) and not hasattr(r, "step")
    }
    if others:
        advice = "draw runs one by one, on the same axes with ax="
        raise TypeError(f"{wanted}a list with {', '.join(sorted(others))}; {advice}")
    return [r for r in run if not isinstance(r, Mapping) or r.get("event", "record") == "record"]


def _fields(record: Any) -> Mapping[str, Any]:
    return record if isinstance(record, Mapping) else vars(record)


def _curve(ax: Any, curve: Pairs, **look: Any) -> None:
    """A line, with markers where there are few points."""
    if curve:
        ax.plot(*zip(*curve), marker="." if len(curve) < 30 else "", **look)


def _limits(losses: Pairs, validation: Pairs) -> tuple[float, float]:
    """Everything after the first fifth of the run, and as much of the beginning again."""
    last = max(step for step, _ in [*losses, *validation])
    values = np.array([*losses, *validation])
    late = values[values[:, 0] > 0.2 * last, 1]
    low, high = values[:, 1].min(), late.max()
    return padded(low, min(values[:, 1].max(), high + (high - low)), 0.06)

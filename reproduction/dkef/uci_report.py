"""Figures and notes of the experiment on UCI tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reproduction.experiment import Run
from reproduction.objectives import METHODS
from reproduction.report import mean_and_error
from scorematching.plot.palette import style


def draw_figures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """The paper's two figures: SM loss and log-likelihood of every objective on every table."""
    from matplotlib.figure import Figure

    tables = _tables(runs)
    figure = Figure(figsize=(4 * len(tables), 6.5), layout="constrained")
    axes = figure.subplots(2, len(tables), squeeze=False)
    for column, table in enumerate(tables):
        rows = (("test_sm", "SM loss (lower is better)"), ("test_ll", "log-likelihood (higher)"))
        for axis, (metric, label) in zip(axes[:, column], rows):
            _draw(axis, _of_table(runs, table), metric)
            axis.set_title(table)
            axis.set_ylabel(label if column == 0 else "")
    path = folder / "figure-dkef.png"
    figure.savefig(path, dpi=150)
    return [path]


def _draw(axis: Any, runs: Sequence[Run], metric: str) -> None:
    """Mean and standard error over seeds of every objective; as text if off the scale."""
    methods = [m for m in METHODS if any(run.config["objective"] == m for run in runs)]
    values = {method: _values(runs, metric, method) for method in methods}
    shown = {m: mean_and_error(list(v.values())) for m, v in values.items() if v}
    low, high = _scale(list(shown.values()))
    edge = {"transform": axis.get_xaxis_transform(), "ha": "center", "rotation": 90}
    for i, method in enumerate(methods):
        mean, error = shown.get(method, (math.nan, None))
        if low <= mean <= high:
            axis.plot([i] * len(values[method]), [*values[method].values()], ".", color="0.7")
            axis.errorbar(i, mean, error or 0.0, fmt="o", capsize=4, color=style(method).color)
        elif mean > high:
            axis.text(i, 0.97, f"{mean:.2g}, off the scale", va="top", **edge)
        else:
            words = "no number" if math.isnan(mean) else f"{mean:.2g}, off the scale"
            axis.text(i, 0.03, words, va="bottom", **edge)
    axis.set_xlim(-0.6, len(methods) - 0.4)
    axis.set_ylim(low, high)
    axis.set_xticks(range(len(methods)), methods, rotation=30, ha="right")


def _scale(shown: Sequence[tuple[float, float | None]]) -> tuple[float, float]:
    """Limits of the axis: outliers, more than ten spreads from the median, are left out.

    The spread is the median distance of the means from their median, or the median error if that
    is larger.
    """
    if not shown:
        return 0.0, 1.0
    middle = sorted(mean for mean, _ in shown)[len(shown) // 2]
    distances = sorted(abs(mean - middle) for mean, _ in shown)
    errors = sorted(error or 0.0 for _, error in shown)
    spread = max(distances[len(shown) // 2], errors[len(shown) // 2])
    reach = max(10 * spread, 1e-3 * abs(middle), 1e-6)
    near = [(mean, error or 0.0) for mean, error in shown if abs(mean - middle) <= reach]
    low, high = min(m - e for m, e in near), max(m + e for m, e in near)
    margin = 0.1 * (high - low) + 0.05 * reach
    return low - margin, high + margin


def write_notes(runs: Sequence[Run]) -> list[str]:
    """Differences of SSM-VR to other objectives, seed by seed, and the sigmas chosen for DSM."""
    notes = [
        "The seed changes the noise of preprocessing, weights, batches and directions; the rows "
        "for training, validation and test are the same for all seeds."
    ]
    for table in _tables(runs):
        mine = _of_table(runs, table)
        notes += [
            note
            for metric, name in (("test_sm", "SM loss"), ("test_ll", "log-likelihood"))
            for other in ("SM", "SSM", "CP")
            for note in _difference(mine, table, metric, name, other)
        ]
        notes += _medians(mine, table)
        sigmas = sorted({run.metrics["sigma"] for run in mine if run.metrics.get("sigma")})
        notes += [f"{table}: DSM with sigma {', '.join(map(str, sigmas))}."] if sigmas else []
    return notes


def _medians(runs: Sequence[Run], table: str) -> list[str]:
    """Medians over seeds, which a single failed run does not move."""
    values = {method: _values(runs, "test_sm", method) for method in METHODS}
    found = [
        f"{method} {statistics.median(by_seed.values()):.3g}"
        for method, by_seed in values.items()
        if by_seed
    ]
    return [f"{table}: medians of the test SM loss: {', '.join(found)}."]


def _difference(
    runs: Sequence[Run], table: str, metric: str, name: str, other: str
) -> Iterator[str]:
    """One sentence, if both have runs of the same seed."""
    a, b = _values(runs, metric, "SSM-VR"), _values(runs, metric, other)
    seeds = sorted(a.keys() & b.keys())
    if seeds:
        mean, error = mean_and_error([a[seed] - b[seed] for seed in seeds])
        spread = "" if error is None else f" ± {error:.3g}"
        difference = f"{table}: test {name} of SSM-VR minus {other}"
        plural = "seed" if len(seeds) == 1 else "seeds"
        yield f"{difference}: {mean:.3g}{spread} ({len(seeds)} {plural})."


def _tables(runs: Sequence[Run]) -> list[str]:
    """The tables that the variants are named after (a smoke test uses other data)."""
    return list(dict.fromkeys(run.variant.split("/")[0] for run in runs))


def _of_table(runs: Sequence[Run], table: str) -> list[Run]:
    return [run for run in runs if run.variant.split("/")[0] == table]


def _values(runs: Sequence[Run], metric: str, method: str) -> dict[int, float]:
    """A metric of an objective, by seed."""
    return {
        run.seed: run.metrics[metric]
        for run in runs
        if run.config["objective"] == method and run.metrics.get(metric) is not None
    }

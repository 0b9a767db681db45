"""Variance of estimates against the number of directions, beside Theorem 3.

Data sets of a known Gaussian law are fitted by exact and by sliced score matching. The variance of
every parameter, over data sets, is divided by that of exact score matching on the same data sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scorematching as sm
from reproduction.experiment import Experiment, Job, Metrics, Run
from reproduction.report import by_variant
from reproduction.theory import gaussian
from scorematching.inference import fit
from scorematching.plot.palette import style

COUNTS = (1, 2, 4, 16)


@dataclass(frozen=True)
class Config:
    """Settings."""

    objective: str = "SSM"  # or "SSM-VR"
    projections: int = 1  # M
    points: int = 500  # of a data set
    datasets: int = 250


def run(config: Config, job: Job) -> Metrics:
    """Fit all data sets of one seed.

    Returns:
        ``ratio``: variance over that of exact score matching, mean over parameters, with its
        standard error over data sets; ``theory``: the same by Theorem 3.
    """
    sliced = gaussian.SLICED[config.objective](
        sm.Rademacher(balanced=False), num_projections=config.projections
    )
    data, directions = job.generator(0, "cpu"), job.generator(1, "cpu")
    exact, estimates = [], []
    for _ in range(config.datasets):
        x = gaussian.draw(config.points, data)
        exact.append(_fit(x, sm.ScoreMatching(), directions))
        estimates.append(_fit(x, sliced, directions))
    ratio, error = inflation(torch.stack(estimates), torch.stack(exact))
    return {
        "ratio": ratio,
        "ratio_se": error,
        "theory": predicted(config.objective == "SSM-VR", config.projections),
    }


def _fit(x: Tensor, objective: sm.Objective, generator: torch.Generator) -> Tensor:
    found = fit(gaussian.model(), x, objective, generator=generator, check=False)
    return torch.tensor(list(found.params.values()), dtype=torch.float64)


def inflation(estimates: Tensor, exact: Tensor) -> tuple[float, float]:
    """Ratio of the mean squared errors of two estimators, mean over parameters.

    Args:
        estimates: one row for each data set, ``(R, P)``.
        exact: of the other estimator, on the same data sets.

    Returns:
        The ratio and its standard error over data sets, by the delta method.
    """
    squares, base = ((e - gaussian.truth()).square() for e in (estimates, exact))
    ratio = squares.mean(0) / base.mean(0)
    residual = ((squares - ratio * base) / base.mean(0)).mean(1)
    return ratio.mean().item(), (residual.std() / len(residual) ** 0.5).item()


def pooled(runs: Sequence[Run]) -> tuple[float, float]:
    """Mean ratio over seeds, with the standard error over all of their data sets."""
    ratios, errors = ([run.metrics[name] for run in runs] for name in ("ratio", "ratio_se"))
    return sum(ratios) / len(runs), math.hypot(*errors) / len(runs)


def predicted(variance_reduced: bool, projections: float) -> float:
    """The ratio by Theorem 3, mean over parameters."""
    sliced = gaussian.theory(variance_reduced, projections).diagonal()
    return (sliced / gaussian.theory(variance_reduced, math.inf).diagonal()).mean().item()


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """The added variance against M, measured (points) and by the theorem (lines)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.8), layout="constrained")
    axis = figure.subplots()
    for name in gaussian.SLICED:
        mine = [found for found in by_variant(runs).values() if _objective(found[0]) == name]
        if mine:
            _draw(axis, name, mine)
    axis.set(xlabel="directions per point, M", ylabel="variance added to that of exact SM")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.legend(frameon=False)
    path = folder / "theory-variance.png"
    figure.savefig(path, dpi=150)
    return [path]


def _draw(axis: Any, name: str, groups: Sequence[Sequence[Run]]) -> None:
    color = style(name).color
    counts = [group[0].config["projections"] for group in groups]
    axis.plot(counts, [group[0].metrics["theory"] - 1 for group in groups], color=color)
    for count, group in zip(counts, groups):
        mean, error = pooled(group)
        label = f"{name}; line: Theorem 3" if count == counts[0] else None
        axis.errorbar(count, mean - 1, error, fmt="o", capsize=3, color=color, label=label)


def _objective(run: Run) -> str:
    return str(run.config["objective"])


def notes(runs: Sequence[Run]) -> list[str]:
    """How far the measured ratios are from the theorem, in standard errors."""
    distances = []
    for group in by_variant(runs).values():
        mean, error = pooled(group)
        distances.append((mean - group[0].metrics["theory"]) / error)
    total = sum(run.config["datasets"] for run in by_variant(runs)[runs[0].variant])
    largest = max(distances, key=abs)
    return [
        f"{total} data sets of {runs[0].config['points']} points each. The largest distance from "
        f"Theorem 3 is {abs(largest):.1f} standard errors over data sets ({len(distances)} rows).",
        "The theorem holds for many points; the ratio of finite data sets differs by terms of the "
        "order of one over their number.",
    ]


EXPERIMENT = Experiment(
    name="theory-variance",
    summary="Variance of estimates against the number of directions, beside Theorem 3.",
    config=Config,
    variants={
        f"{name} M={count}": {"objective": name, "projections": count}
        for name in gaussian.SLICED
        for count in COUNTS
    },
    smoke={"points": 50, "datasets": 4},
    run=run,
    columns={"ratio": "variance, relative to exact SM", "theory": "Theorem 3"},
    plot=plot,
    notes=notes,
)

"""Noise-contrastive estimation with shifted data as noise, in the limit of small shifts.

Proposition 1 of the paper expands its loss in the shift ``u = h v``: ``2 log 2`` plus ``c h^2``
times sliced score matching, with c = 1/4 as printed. The expansion in its proof gives c = 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import scorematching as sm
from reproduction.experiment import Experiment, Job, Metrics, Run
from reproduction.report import by_variant
from reproduction.theory import gaussian
from scorematching.inference import fit
from scorematching.models import MLPDensity

STEPS = (1.0, 0.5, 0.2, 0.1, 0.05)
"""Lengths of the shift."""


@dataclass(frozen=True)
class Config:
    """Settings."""

    eps: float = 0.1  # length of the shift, in three dimensions
    points: int = 2000


def run(config: Config, job: Job) -> Metrics:
    """Compare losses and estimates for one length of the shift, with the same directions.

    Returns:
        ``factor``: c, of a density that is a network, with its standard error over points;
        ``distance``: of the Gaussian's parameters from those by sliced score matching, in standard
        errors of the latter (root mean square); ``rate``: the same, divided by ``eps^2``.
    """
    x = gaussian.draw(config.points, job.generator(0, "cpu"))
    contrastive = sm.NoiseContrastive(sm.Rademacher(balanced=False), eps=config.eps)
    sliced = sm.SlicedScoreMatching(sm.Rademacher(balanced=False))
    factor, error = _factor(config, job, contrastive, sliced, x)
    found, limit = (
        fit(gaussian.model(), x, objective, generator=job.generator(2, "cpu"), check=False)
        for objective in (contrastive, sliced)
    )
    moved = [(found.params[name] - limit.params[name]) / limit.bse[name] for name in limit.params]
    distance = math.sqrt(sum(step**2 for step in moved) / len(moved))
    return {
        "factor": factor,
        "factor_se": error,
        "distance": distance,
        "rate": distance / config.eps**2,
    }


def _factor(
    config: Config, job: Job, contrastive: sm.Objective, sliced: sm.Objective, x: Tensor
) -> tuple[float, float]:
    """The factor c, a ratio of means, and its standard error by the delta method."""
    network = MLPDensity(x.shape[1], hidden=(16, 16), generator=job.generator(1, "cpu")).double()
    with torch.no_grad():
        nce, ssm = (
            objective(network, x, generator=job.generator(2, "cpu"))
            for objective in (contrastive, sliced)
        )
    added, unit = nce - 2 * math.log(2), config.eps**2 / x.shape[1] * ssm
    ratio = added.mean() / unit.mean()
    residual = (added - ratio * unit) / unit.mean()
    return ratio.item(), (residual.std() / len(x) ** 0.5).item()


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """The factor and the distance of estimates, against the length of the shift."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for group in by_variant(runs).values():
        eps = [run.config["eps"] for run in group]
        left.plot(eps, [run.metrics["factor"] for run in group], "o", color="C0")
        right.plot(eps, [run.metrics["distance"] for run in group], "o", color="C0")
    left.axhline(0.5, color="C1", label="1/2")
    left.axhline(0.25, color="C2", linestyle="--", label="1/4, as printed")
    left.set(xlabel="length of the shift", ylabel="factor of sliced score matching", xscale="log")
    left.legend(frameon=False)
    right.set(xlabel="length of the shift", ylabel="distance of estimates, in standard errors")
    right.set(xscale="log", yscale="log")
    path = folder / "theory-nce.png"
    figure.savefig(path, dpi=150)
    return [path]


EXPERIMENT = Experiment(
    name="theory-nce",
    summary="Noise-contrastive estimation tends to sliced score matching as its noise shrinks.",
    config=Config,
    variants={f"shift {eps}": {"eps": eps} for eps in STEPS},
    smoke={"points": 50},
    run=run,
    columns={
        "factor": "factor c",
        "distance": "distance of estimates, in standard errors",
        "rate": "distance / shift^2",
    },
    plot=plot,
)

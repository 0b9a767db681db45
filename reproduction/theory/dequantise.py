"""Which noise gives score matching on rounded values a least value.

Rounded values, such as grey levels, are spread by noise before a density is fitted. Where the
density of the noisy values jumps, from a down to b, a score of ``-A`` on an interval of length h
around the jump changes the loss ``E[s' + s^2 / 2]`` by ``-(a - b) A`` plus at most
``max(a, b) h A^2 / 2``. The second term vanishes for small h, so the loss falls without limit in A.
Uniform noise has such jumps, and clipping makes point masses, which is worse. Noise with a smooth
density has none: the least loss is ``-E |s|^2 / 2``, with the score s of the noisy values.

Pairs of rounded normal numbers, of which the negative ones are set to zero as dark pixels are, get
fresh noise in every batch, so that no network can learn single points by heart. If the loss has a
least value, longer training and other seeds lead to the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import scorematching as sm
from reproduction.experiment import Experiment, Job, Metrics, Run
from reproduction.report import by_variant
from scorematching._checks import check_choice
from scorematching.evaluation import Estimate
from scorematching.models import MLPDensity
from scorematching.training import TrainConfig, train

EPOCHS = (10, 40, 160)
"""Lengths of training."""

WIDTH = 0.3
"""Standard deviation of normal noise, in levels; that of uniform noise is 0.29."""


@dataclass(frozen=True)
class Config:
    """Settings."""

    noise: str = "clipped"  # or "uniform", "normal"
    epochs: int = 10
    points: int = 20_000
    batch_size: int = 250
    hidden: int = 64  # units in each of two layers
    lr: float = 5e-3  # falls to zero


def run(config: Config, job: Job) -> Metrics:
    """Train a network by exact score matching and take its loss on the same levels, new noise.

    Returns:
        ``loss`` with its standard error over points; ``least``: that of the true density, for
        noise with a smooth one.
    """
    check_choice(config.noise, "noise", NOISES, '"clipped" is that of table-nice')
    levels = draw(config.points, job.generator(0, "cpu")).to(job.device)
    hidden, noise = (config.hidden, config.hidden), NOISES[config.noise]
    model = MLPDensity(2, hidden=hidden, generator=job.generator(1, "cpu")).to(job.device)
    found = train(
        model,
        sm.ScoreMatching(),
        levels,
        _train_config(config),
        transform=noise,
        generator=job.generator(2),
        folder=job.folder / "training",
        resume=True,
        progress=job.progress,
    )
    test = noise(levels, job.generator(3))
    loss = Estimate.of(exact_losses(model, test))
    least = Estimate.of(exact_losses(mixture(levels), test)) if noise is normal else None
    return {
        "loss": loss.mean,
        "loss_se": loss.standard_error,
        "least": least and least.mean,
        "least_se": least and least.standard_error,
        "train_seconds": found.seconds,
    }


def draw(num: int, generator: torch.Generator) -> Tensor:
    """Rounded normal pairs with standard deviation 2 and correlation 0.6, at least zero."""
    z = torch.randn(num, 2, generator=generator)
    x = torch.stack([z[:, 0], 0.6 * z[:, 0] + 0.8 * z[:, 1]], 1)
    return (2 * x).round().clamp(min=0)


def clipped(levels: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform noise around the levels, clipped at zero: half of the zeros stay zeros."""
    return (levels + _uniform(levels, generator) - 0.5).clamp(min=0)


def uniform(levels: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform noise above the levels, nothing clipped."""
    return levels + _uniform(levels, generator)


def normal(levels: Tensor, generator: torch.Generator) -> Tensor:
    """Normal noise around the levels."""
    noise = torch.randn(levels.shape, generator=generator, device=levels.device)
    return levels + WIDTH * noise


def _uniform(levels: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(levels.shape, generator=generator, device=levels.device)


NOISES = {"clipped": clipped, "uniform": uniform, "normal": normal}


def mixture(levels: Tensor) -> Callable[[Tensor], Tensor]:
    """The log-density of the levels with normal noise, up to a constant."""
    centres, counts = levels.unique(dim=0, return_counts=True)

    def log_density(x: Tensor) -> Tensor:
        distances = ((x[:, None] - centres) / WIDTH).square().sum(-1)
        return (counts.log() - 0.5 * distances).logsumexp(1)

    return log_density


@torch.no_grad()
def exact_losses(log_density: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Exact score-matching losses, ``(N, D) -> (N,)``."""
    return sm.ScoreMatching()(log_density, x)


def _train_config(config: Config) -> TrainConfig:
    per_epoch = config.points // config.batch_size
    return TrainConfig(
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        schedule="cosine",
        ema_decay=0.99,
        checkpoint_every=10 * per_epoch,
        log_every=per_epoch,
    )


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Minus the losses against the length of training, one point for each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    for place, kind in enumerate(dict.fromkeys(run.config["noise"] for run in runs)):
        mine = [run for run in runs if run.config["noise"] == kind]
        epochs = [run.config["epochs"] for run in mine]
        losses = [-run.metrics["loss"] for run in mine]
        color, marker, name = f"C{place}", "osD"[place], f"{kind} noise"
        axis.plot(epochs, losses, marker, color=color, fillstyle="none", label=name)
        if kind == "normal":
            least = sum(-run.metrics["least"] for run in mine) / len(mine)
            axis.axhline(least, color=color, label="its true density")
    lengths = sorted({run.config["epochs"] for run in runs})
    axis.set(xlabel="epochs of training", ylabel="minus SM loss", xscale="log", yscale="log")
    axis.set_xticks(lengths, [str(count) for count in lengths])
    axis.minorticks_off()
    axis.legend(frameon=False)
    path = folder / "theory-dequantise.png"
    figure.savefig(path, dpi=150)
    return [path]


def notes(runs: Sequence[Run]) -> list[str]:
    """What each seed ended with."""
    return [
        f"SM loss of {variant} by seed: "
        + ", ".join(f"{run.metrics['loss']:.4g}" for run in mine)
        + "."
        for variant, mine in by_variant(runs).items()
    ]


EXPERIMENT = Experiment(
    name="theory-dequantise",
    summary="Which noise gives score matching on rounded values a least value.",
    config=Config,
    variants={
        f"{noise} {epochs} epochs": {"noise": noise, "epochs": epochs}
        for noise in NOISES
        for epochs in EPOCHS
    },
    smoke={"epochs": 2, "points": 100, "batch_size": 50, "hidden": 4},
    run=run,
    columns={"loss": "SM loss", "least": "that of the true density"},
    plot=plot,
    notes=notes,
)

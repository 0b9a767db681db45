"""Which noise gives score matching on grey levels a least value.

Pixels have levels, and noise spreads them before a density is fitted. Where the density of the
noisy pixels jumps, from a down to b, a score of ``-A`` on an interval of length h around the jump
changes the loss ``E[s' + s^2 / 2]`` by ``-(a - b) A`` plus at most ``max(a, b) h A^2 / 2``. The
second term vanishes for small h, so the loss falls without limit in A. Uniform noise has such
jumps, and clipping makes point masses, which is worse. Noise with a smooth density has none: the
loss is at least ``-E |s|^2 / 2`` with the score s of the data, and normal noise of standard
deviation sigma in D dimensions bounds that by ``-D / (2 sigma^2)``.

Small digits are fitted with each noise, in runs of several lengths. If the loss has a least value,
longer runs and different seeds agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from reproduction import nice
from reproduction.experiment import Experiment, Job, Metrics, Run
from reproduction.images import digits, uniform_noise
from reproduction.objectives import objective
from reproduction.report import by_variant
from scorematching import datasets
from scorematching._checks import check_choice
from scorematching.evaluation import Estimate
from scorematching.models import NICE
from scorematching.training import TrainConfig, train

EPOCHS = (5, 20, 80)
"""Lengths of training."""


@dataclass(frozen=True)
class Config:
    """Settings; where not said otherwise those of the stable recipe of table-nice."""

    pixels: str = "clipped"  # or "dequantised", "smooth"
    epochs: int = 5
    dataset: str = "mnist"
    pool: int = 4  # pixels of a side that become one: 7 x 7 are left
    width: int = 128
    num_hidden: int = 2
    lr: float = 1e-2  # at 3e-4 or 1e-3 such small networks do not end in a hundred epochs
    batch_size: int = 128
    valid_points: int = 1000  # on which exact losses choose the weights
    test_points: int = 10_000
    synthetic_dim: int = 64  # of the smoke test's data, before pooling


def run(config: Config, job: Job) -> Metrics:
    """Train one flow by SSM-VR and take its exact loss on test points.

    Returns:
        ``test_sm`` with its standard error over points; ``bound``: what it cannot fall below, for
        noise with a smooth density; ``seconds_per_epoch``.
    """
    check_choice(config.pixels, "pixels", nice.TRANSFORMS, '"clipped" is as released')
    transform, prepare = nice.TRANSFORMS[config.pixels], job.generator(1)
    parts = [pooled(part, config.pool) for part in load(config, job)]
    valid = transform(parts[1][: config.valid_points], prepare)
    test = transform(parts[2][: config.test_points], prepare)
    dim, hidden = test.shape[1], (config.width,) * config.num_hidden
    flow = NICE(dim, hidden=hidden, generator=job.generator(2, "cpu")).to(job.device)
    found = train(
        flow,
        objective("SSM-VR", balanced=True),
        parts[0],
        _train_config(config, len(parts[0]) // config.batch_size),
        validation=lambda model: nice.exact_losses(model, valid).mean().item(),
        transform=transform,
        generator=job.generator(3),
        folder=job.folder / "training",
        resume=True,
        progress=job.progress,
    )
    loss = Estimate.of(nice.exact_losses(flow, test))
    return {
        "test_sm": loss.mean,
        "test_sm_se": loss.standard_error,
        "bound": -dim / (2 * nice.SMOOTH**2) if config.pixels == "smooth" else None,
        "seconds_per_epoch": found.seconds / config.epochs,
    }


def load(config: Config, job: Job) -> datasets.Split:
    """Images in [0, 1] as rows, for training, validation and test."""
    if config.dataset == "synthetic":
        sizes = 8 * config.batch_size, config.valid_points, config.test_points
        return uniform_noise(sizes, config.synthetic_dim, job)
    return digits(config.dataset, 6_000, job)


def pooled(images: Tensor, pool: int) -> Tensor:
    """Smaller images of whole grey levels: means of squares of pixels, ``(N, D) -> (N, D')``."""
    side = round(images.shape[1] ** 0.5)
    small = F.avg_pool2d(images.reshape(-1, 1, side, side), pool).flatten(1)
    return (255 * small).round() / 255


def _train_config(config: Config, per_epoch: int) -> TrainConfig:
    return TrainConfig(
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        schedule="cosine",
        max_norm=1000.0,
        ema_decay=0.999,
        validate_every=per_epoch,
        checkpoint_every=5 * per_epoch,
        log_every=per_epoch,
    )


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Losses against the length of training, one point for each seed."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(run.config["pixels"] for run in runs))
    figure = Figure(figsize=(4 * len(kinds), 3.6), layout="constrained")
    for axis, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds):
        mine = [run for run in runs if run.config["pixels"] == kind]
        epochs = [run.config["epochs"] for run in mine]
        axis.plot(epochs, [run.metrics["test_sm"] for run in mine], "o", color="C0")
        if mine[0].metrics["bound"] is not None:
            axis.axhline(mine[0].metrics["bound"], color="C1", label="bound for any density")
            axis.legend(frameon=False)
        axis.set(title=kind, xlabel="epochs of training", ylabel="SM loss, test", xscale="log")
        axis.set_xticks(sorted(set(epochs)), [str(count) for count in sorted(set(epochs))])
        axis.minorticks_off()
    path = folder / "theory-dequantise.png"
    figure.savefig(path, dpi=150)
    return [path]


def notes(runs: Sequence[Run]) -> list[str]:
    """What each seed ended with."""
    return [
        f"Test SM loss of {variant} by seed: "
        + ", ".join(f"{run.metrics['test_sm']:.0f}" for run in mine)
        + "."
        for variant, mine in by_variant(runs).items()
    ]


EXPERIMENT = Experiment(
    name="theory-dequantise",
    summary="Which noise gives score matching on grey levels a least value: small digits by NICE.",
    config=Config,
    variants={
        f"{pixels} {epochs} epochs": {"pixels": pixels, "epochs": epochs}
        for pixels in nice.TRANSFORMS
        for epochs in EPOCHS
    },
    smoke={
        "dataset": "synthetic",
        "epochs": 2,
        "batch_size": 16,
        "width": 8,
        "valid_points": 16,
        "test_points": 32,
    },
    run=run,
    columns={
        "test_sm": "SM loss",
        "bound": "least possible",
        "seconds_per_epoch": "seconds per epoch",
    },
    plot=plot,
    notes=notes,
)

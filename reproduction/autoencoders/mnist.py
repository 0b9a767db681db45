"""Variational and Wasserstein auto-encoders on MNIST by five methods (the paper's Table 2).

Every row trains the same networks on digits that are binarised anew at every step. It is evaluated
by the likelihood of its decoder on the 10,000 test images, binarised once: annealed importance
sampling from the prior of the latents to their posterior, for each image. That takes hours without
a GPU; ``--set likelihood=modes`` samples around the modes of the posteriors, which are found from
encodings, and takes minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproduction.autoencoders.likelihood import LikelihoodSettings, likelihood
from reproduction.autoencoders.mnist_networks import make_implicit_vae, make_vae, make_wae
from reproduction.autoencoders.training import (
    EVALUATION,
    RECONSTRUCTIONS,
    SAMPLES,
    WEIGHTS,
    needs_network,
    progress_of,
    reached,
    sample_figures,
    train_model,
)
from reproduction.experiment import Experiment, Job, Metrics, Run
from reproduction.images import digits, uniform_noise
from reproduction.pictures import panels, save_pairs, save_sheet
from reproduction.report import by_variant
from scorematching import datasets
from scorematching.models import VAE, WAE, ImplicitVAE
from scorematching.plot.canvas import shared_legend, tidy
from scorematching.plot.palette import style

PICTURES = 5  # one more random stream


@dataclass(frozen=True)
class Config(LikelihoodSettings):
    """Settings. Defaults are those of Section 6.2 and Appendix C.3, or the released program's."""

    width: int = 256  # C.3; of the two hidden layers of each network
    train_images: int | None = None  # the first of them only; None: all 48,000
    valid_images: int = 12_000  # release
    test_images: int = 10_000  # of them
    synthetic_dim: int = 784  # of the smoke test's data

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_images is not None and self.train_images < self.batch_size:
            raise ValueError(
                f"train_images must be at least batch_size = {self.batch_size}, or none for all, "
                f"got {self.train_images}"
            )


METHODS: dict[str, dict[str, Any]] = {
    "ELBO": {"method": "ELBO"},
    "SSM": {"method": "SSM"},
    "SSM M=100": {"method": "SSM", "projections": 100},
    "SSM exact": {"method": "SSM exact"},
    "Stein": {"method": "Stein"},
    "Spectral": {"method": "Spectral"},
}
"""Rows of each column of the table; the exact trace is ours."""

VARIANTS: dict[str, dict[str, Any]] = {
    f"{model} {dim}/{name}": {"model": model, "latent_dim": dim, **row}
    for model in ("VAE", "WAE")
    for dim in (8, 32)
    for name, row in METHODS.items()
    if not (model == "WAE" and name == "ELBO")
}

VARIANTS |= {
    "VAE 8/ELBO cosine": {**VARIANTS["VAE 8/ELBO"], "schedule": "cosine"},
    "VAE 8/SSM lr=1e-4": {**VARIANTS["VAE 8/SSM"], "lr": 1e-4},
    "VAE 8/SSM cosine": {**VARIANTS["VAE 8/SSM"], "schedule": "cosine"},
}  # other rates than the paper's: that of the released settings until January 2020, and ours

VARIANTS |= {
    f"VAE 8/{name} seventh": {**VARIANTS[f"VAE 8/{name}"], "train_images": 48_000 // 7}
    for name in ("ELBO", "SSM")
}  # as few images, next to the paper, as there are in table-celeba: does the order change?

SMOKE = {
    "dataset": "synthetic",
    "synthetic_dim": 16,
    "latent_dim": 2,
    "width": 8,
    "iterations": 8,
    "stage": 4,
    "batch_size": 16,
    "num_samples": 6,
    "train_images": 100,
    "valid_images": 32,
    "test_images": 64,
    "ais_images": 8,
    "ais_chains": 4,
    "ais_steps": 5,
    "ais_leapfrog": 2,
    "modes_samples": 20,
    "bracket_images": 4,
}


def run(config: Config, job: Job) -> Metrics:
    """Train one row and estimate the likelihood of the test images.

    Args:
        config: the settings.
        job: the circumstances.

    Returns:
        The negative log-likelihood with its standard error over images, how well the chains did,
        errors on held-out images on the way, and times.
    """
    parts = load(config, job)
    noise = job.generator(EVALUATION)
    valid, test = (binarise(part, noise) for part in parts[1:])
    model = make_model(config, parts.train.shape[1], job)

    def evaluate(iterations: int) -> Metrics:
        return held_out(model, valid, job.generator(EVALUATION))

    seen = train_model(model, parts.train, binarise, config, job, evaluate)
    _draw_sheets(model, test, job)
    last = seen["stages"].get(str(seen["iterations"]), held_out(model, valid, noise))
    return {
        **likelihood(model, test, config, job),
        "valid_reconstruction": last["reconstruction"],
        "valid_bound": last["bound"],
        **progress_of(seen),
        "rounding": rounding(model, test[:1000], noise),
        "stages": seen["stages"],
    }


def load(config: Config, job: Job) -> datasets.Split:
    """Images as rows in [0, 1]: 48,000 for training, 12,000 held out, 10,000 for the test."""
    if config.dataset == "synthetic":
        sizes = 8 * config.batch_size, config.valid_images, config.test_images
        parts = uniform_noise(sizes, config.synthetic_dim, job)
    else:
        parts = digits(config.dataset, config.valid_images, job)
    if config.train_images is not None and config.train_images > len(parts.train):
        raise ValueError(
            f"train_images must be at most {len(parts.train)}, the images for training, or none "
            f"for all, got {config.train_images}"
        )
    return parts._replace(
        train=parts.train[: config.train_images], test=parts.test[: config.test_images]
    )


def binarise(intensities: Tensor, generator: torch.Generator) -> Tensor:
    """Bernoulli pixels with the intensities as probabilities, ``(N, D) -> (N, D)``."""
    return torch.bernoulli(intensities, generator=generator)


def make_model(config: Config, dim: int, job: Job) -> VAE | ImplicitVAE | WAE:
    """The model of a row, with initial weights drawn from the seed."""
    hidden, weights = (config.width, config.width), job.generator(WEIGHTS, "cpu")
    model: VAE | ImplicitVAE | WAE
    if config.method == "ELBO":
        model = make_vae(config.latent_dim, dim, hidden, weights)
    elif config.model == "VAE":
        network = needs_network(config)
        model = make_implicit_vae(config.latent_dim, dim, hidden, network, weights)
    else:
        network, lam = needs_network(config), config.lam
        model = make_wae(config.latent_dim, dim, hidden, network, lam, weights)
    return model.to(job.device)


@torch.no_grad()
def held_out(model: Any, x: Tensor, generator: torch.Generator) -> Metrics:
    """On held-out images: ``-log p(x | z)`` for z of the encoder, and minus the evidence bound.

    Only an explicit encoder has a bound: an implicit one has no density.
    """
    parts = x.split(2000)
    errors = [-model.log_likelihood(model.encode(part, generator), part) for part in parts]
    bounds = [model.loss(part, generator) for part in parts] if isinstance(model, VAE) else None
    return {
        "reconstruction": torch.cat(errors).double().mean().item(),
        "bound": torch.cat(bounds).double().mean().item() if bounds else None,
    }


@torch.no_grad()
def rounding(model: Any, x: Tensor, generator: torch.Generator) -> float:
    """Mean rounding error of ``log p(x | z)``, tf32 included."""
    z = model.encode(x, generator)
    exact = deepcopy(model).double().log_likelihood(z.double(), x.double())
    return (model.log_likelihood(z, x).double() - exact).mean().item()


@torch.no_grad()
def _draw_sheets(model: Any, test: Tensor, job: Job) -> None:
    """Write samples and reconstructions as PNG into the folder of the run."""
    generator, side = job.generator(PICTURES), math.isqrt(test.shape[1])
    shape = (-1, 1, side, test.shape[1] // side)
    save_sheet(job.folder / SAMPLES, model.sample(100, generator).reshape(shape))
    copies = model.decode(model.encode(test[:50], generator))
    save_pairs(
        job.folder / RECONSTRUCTIONS, test[:50].reshape(shape), copies.reshape(shape), columns=10
    )


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw the samples of all rows, and errors on held-out images against iterations."""
    usual = [run for run in runs if _place(run)[0] in METHODS]  # other rates change no sheet
    return [*sample_figures(usual, folder, _place), _curves(runs, folder)]


def _place(run: Run) -> tuple[str, str]:
    return run.variant.split("/")[-1], f"latent dimension {run.config['latent_dim']}"


def _curves(runs: Sequence[Run], folder: Path) -> Path:
    """Means over seeds, in bands from the least to the largest; rows of ours in a panel apart."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        kind, name = run.variant.split("/")
        groups.setdefault(kind if name in METHODS else f"{kind}, settings of ours", []).append(run)
    figure, axes = panels(len(groups), 4.5, 3.8)
    for axis, (title, group) in zip(axes, groups.items()):
        for variant, seeds in by_variant(group).items():
            _draw_band(axis, variant.split("/")[1], seeds)
        axis.set(title=title, xlabel="thousands of iterations", ylabel="-log p(x | z), held out")
        tidy(axis)
    shared_legend(figure, columns=6)
    path = folder / "table-mnist-curves.png"
    figure.savefig(path, dpi=150)
    return path


def _draw_band(axis: Any, name: str, seeds: Sequence[Run]) -> None:
    """The errors of one row on held-out images, at the stages that all of its seeds reached."""
    stages = [run.metrics["stages"] for run in seeds]
    errors = list(zip(*([at["reconstruction"] for at in each.values()] for each in stages)))
    marks = [int(mark) / 1000 for mark, _ in zip(stages[0], errors)]
    look = style(name)
    axis.plot(marks, [sum(each) / len(each) for each in errors], label=name, **look.line())
    band = [min(each) for each in errors], [max(each) for each in errors]
    axis.fill_between(marks, *band, color=look.color, alpha=0.2, linewidth=0)


SAMPLES_BY = {"annealing": "ais_chains", "modes": "modes_samples"}
"""The setting with the number of samples of an image, by the way its likelihood is estimated."""


def notes(runs: Sequence[Run]) -> list[str]:
    """Sentences about the accuracy of the estimates."""
    found = [
        f"On {runs[0].config['bracket_images']} simulated images the bounds from below and above "
        f"differ by at most {max(run.metrics['bracket_gap'] for run in runs):.2f} nats in the "
        "mean, over all rows."
    ]
    for kind, samples in SAMPLES_BY.items():
        sizes = [
            (run.metrics["ess"], run.config[samples])
            for run in runs
            if run.metrics.get("likelihood", "annealing") == kind
        ]
        if sizes:
            least, count = min(sizes)
            found.append(
                f"Effective sample size of likelihoods by {kind} at least {least:.1f} of {count} "
                "in the mean."
            )
    worst = max(abs(run.metrics["rounding"]) for run in runs)
    found.append(f"Rounding moves log p(x | z) by at most {worst:.1g} nats in the mean.")
    return found


EXPERIMENT = Experiment(
    name="table-mnist",
    summary="Auto-encoders on MNIST: negative log-likelihood by annealed importance sampling.",
    config=Config,
    variants=VARIANTS,
    smoke=SMOKE,
    run=run,
    columns={
        "nll": "NLL",
        "bracket_gap": "bracket",
        "valid_reconstruction": "held-out reconstruction",
        "iterations": "iterations",
        "ms_per_iteration": "ms per iteration",
        "ais_seconds": "AIS seconds",
    },
    plot=plot,
    notes=notes,
    reached=reached,
    interchangeable=("ais_force", "likelihood", "modes_starts", "modes_samples"),
)

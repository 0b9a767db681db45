"""The likelihood of images under a decoder: the number by which table-mnist compares its rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reproduction.autoencoders.annealing import annealed
from reproduction.autoencoders.forces import force_options
from reproduction.autoencoders.training import Settings
from reproduction.experiment import Job, Metrics
from scorematching.evaluation import (
    Bracket,
    Estimate,
    decoder_bracket,
    importance_bracket,
    importance_log_likelihood,
)

AIS = 4  # a random stream


@dataclass(frozen=True)
class LikelihoodSettings(Settings):
    """How likelihoods are estimated, beside the settings of the training."""

    ais_images: int = 10_000  # 6.2; the first of the test images
    ais_chains: int = 16  # release
    ais_steps: int = 1000  # 6.2; temperatures
    ais_leapfrog: int = 10  # release
    ais_batch: int = 1000  # images at a time (ours)
    ais_force: str = "bf16"  # or "float32"; of forces only, so estimates are exact (ours)
    likelihood: str = "annealing"  # or "modes": importance sampling around them (ours)
    modes_starts: int = 4  # encodings of an image, from which its modes are searched (ours)
    modes_samples: int = 1000  # of an image (ours)
    bracket_images: int = 100  # simulated, with bounds of the likelihood from both sides (ours)

    def __post_init__(self) -> None:
        if self.likelihood not in ("annealing", "modes"):
            raise ValueError(
                f"likelihood must be annealing or modes, got {self.likelihood!r}; annealing starts "
                "from the prior and is the paper's, modes takes minutes without a GPU"
            )
        if self.ais_force not in ("float32", "bf16"):
            raise ValueError(
                f"ais_force must be float32 or bf16, got {self.ais_force!r}; both give the same "
                "estimates to their standard errors, bf16 is faster on a GPU"
            )

    @property
    def force_precision(self) -> str | None:
        """The argument of `decoder_log_likelihood`."""
        return None if self.ais_force == "float32" else self.ais_force


def likelihood(model: Any, test: Tensor, config: LikelihoodSettings, job: Job) -> Metrics:
    """The negative log-likelihood of test images, its errors and diagnostics of the samples."""
    estimate = _by_annealing if config.likelihood == "annealing" else _by_modes
    found, bracket = estimate(model, test[: config.ais_images], config, job)
    nll = Estimate.of(-found["log_likelihood"])
    return {
        "nll": nll.mean,
        "nll_se": nll.standard_error,
        "ais_images": nll.count,
        # The error of one image, over its samples; the one above is over images.
        "image_se": found["standard_error"].mean().item(),
        "ess": found["effective_sample_size"].mean().item(),
        "acceptance": _mean(found.get("acceptance")),
        "ais_seconds": round(found["seconds"].sum().item(), 2),
        "likelihood": config.likelihood,
        "bracket_nll": -Estimate.of(bracket.lower).mean,
        "bracket_gap": bracket.gap.mean,
        "bracket_gap_se": bracket.gap.standard_error,
    }


def _mean(values: Tensor | None) -> float | None:
    return None if values is None else values.mean().item()


def _by_annealing(
    model: Any, images: Tensor, config: LikelihoodSettings, job: Job
) -> tuple[dict[str, Any], Bracket]:
    """From the prior of the latents to their posteriors."""
    generator, force = job.generator(AIS), config.force_precision
    found = annealed(model, images, _annealing(config), job.folder, generator, force)
    bracket = decoder_bracket(
        model.decoder,
        config.bracket_images,
        config.latent_dim,
        images,
        model.observation,
        config.ais_chains,
        config.ais_steps,
        num_leapfrog=config.ais_leapfrog,
        generator=generator,
        **force_options(model, images, force),
    )
    return found, bracket


def _annealing(config: LikelihoodSettings) -> dict[str, int]:
    return {
        "latent_dim": config.latent_dim,
        "num_chains": config.ais_chains,
        "num_steps": config.ais_steps,
        "num_leapfrog": config.ais_leapfrog,
        "batch_size": config.ais_batch,
    }


def _by_modes(
    model: Any, images: Tensor, config: LikelihoodSettings, job: Job
) -> tuple[dict[str, Any], Bracket]:
    """Around the modes of the posteriors, which are searched from encodings."""
    generator, began = job.generator(AIS), time.perf_counter()

    def encodings(x: Tensor) -> Tensor:
        return torch.stack([model.encode(x, generator) for _ in range(config.modes_starts)])

    how: dict[str, Any] = {
        "starts": encodings,
        "observation": model.observation,
        "num_samples": config.modes_samples,
        "generator": generator,
    }
    found = importance_log_likelihood(model.decoder, images, **how)
    seconds = torch.tensor(time.perf_counter() - began)
    bracket = importance_bracket(
        model.decoder, config.bracket_images, config.latent_dim, images, **how
    )
    return {**vars(found), "seconds": seconds}, bracket

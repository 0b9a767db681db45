"""Milliseconds of a training iteration of the auto-encoders for faces, alone on a device.

A row trains by the step of `train` on one batch of random pixels, again and again. On a GPU it has
an account of its kernels. Seeds are repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.training import bare_step, seconds_and_kernels
from reproduction.autoencoders import celeba
from reproduction.autoencoders.training import TRAINING, loss_for, optimizer_for
from reproduction.experiment import Experiment, Job, Metrics
from reproduction.workers import timed_convolutions
from scorematching.training import LossModule


@dataclass(frozen=True)
class Config(celeba.Config):
    """The settings of table-celeba, and how a step is run."""

    executor: str = "compiled+captured"
    steps: int = 200  # that are timed


PRECISIONS = {"bf16": "bf16", "tf32": "float32"}
EXECUTORS = ("eager", "captured", "compiled+captured")

VARIANTS: dict[str, dict[str, Any]] = {
    f"{row} {products} {executor}": {
        **celeba.VARIANTS[row],
        "precision": precision,
        "executor": executor,
    }
    for row in ("VAE/ELBO", "VAE/SSM", "WAE/SSM")
    for products, precision in PRECISIONS.items()
    for executor in EXECUTORS
}

SMOKE = {"size": 16, "width": 2, "latent_dim": 3, "batch_size": 4, "steps": 2, "executor": "eager"}


@timed_convolutions()
def run(config: Config, job: Job) -> Metrics:
    """Time one row.

    Returns:
        Milliseconds of an iteration, the largest memory in megabytes, and on a GPU milliseconds
        and numbers of kernels by kind.
    """
    model = celeba.make_model(config, job)
    losses = LossModule(
        model, loss_for(config), job.generator(TRAINING), config.precision, touch=False
    )
    optimizer = optimizer_for(config, model)(list(model.parameters()), lr=config.lr)
    if job.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = bare_step(losses, optimizer, config.executor, _batch(config, job))
    seconds, kernels = seconds_and_kernels(step, config.steps, job.device)
    busy = sum(kind["ms"] for kind in kernels.values())
    return {
        "ms": 1e3 * seconds,
        **{kind: found["ms"] for kind, found in kernels.items()},
        "between kernels": max(0.0, 1e3 * seconds - busy) if kernels else None,
        "megabytes": torch.cuda.max_memory_allocated() / 1e6 if kernels else None,
        "kernels": kernels,
    }


def _batch(config: Config, job: Job) -> Tensor:
    """Random pixels as the transform of table-celeba prepares them."""
    shape = (config.batch_size, 3, config.size, config.size)
    pixels = torch.rand(shape, generator=job.generator(), device=job.device)
    return celeba.transform_of(config)(celeba.as_bytes(pixels), job.generator())


EXPERIMENT = Experiment(
    name="speed-celeba",
    summary="Milliseconds of a training iteration of the auto-encoders for faces.",
    config=Config,
    variants=VARIANTS,
    smoke=SMOKE,
    run=run,
    columns={
        "ms": "ms per iteration",
        "convolutions": "convolutions",
        "matrix products": "matrix products",
        "elementwise": "elementwise",
        "copies": "copies",
        "optimiser": "optimiser",
        "between kernels": "between kernels",
        "megabytes": "memory, MB",
    },
)

"""Images for experiments. The split is the same for all seeds, so that seeds can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reproduction.experiment import Job
from scorematching import datasets

SPLIT_SEED = 2019


def digits(dataset: str, num_valid: int, job: Job) -> datasets.Split:
    """Digits as rows in [0, 1] on the job's device, split; the test images are the data set's own.

    Args:
        dataset: "mnist", or another data set with test images.
        num_valid: number of validation images.
        job: device and data folder.
    """
    images, test = (
        datasets.load(name, job.data_dir, dtype=torch.float32).x.flatten(1).to(job.device)
        for name in (dataset, f"{dataset}-test")
    )
    train, valid, _ = split_images(images, (len(images) - num_valid, num_valid, 0))
    return datasets.Split(train, valid, test)


def split_images(x: Tensor, sizes: Sequence[int] | Sequence[float]) -> datasets.Split:
    """Training, validation and test points of these sizes."""
    return datasets.split(x, sizes, torch.Generator().manual_seed(SPLIT_SEED))


def uniform_noise(sizes: Sequence[int], dim: int, job: Job) -> datasets.Split:
    """Uniform random numbers for smoke tests, in three parts."""
    shape = sum(sizes), dim
    points = torch.rand(shape, generator=job.generator(0), device=job.device)
    return datasets.Split(*points.split(list(sizes)))

"""Images for experiments, split the same way whatever the seed, so that seeds can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reproduction.experiment import Job
from scorematching import datasets

SPLIT_SEED = 2019


def digits(dataset: str, num_valid: int, job: Job) -> datasets.Split:
    """Digits as rows in [0, 1], on the job's device, with the data set's own test images.

    Args:
        dataset: "mnist", or another with a part for the test.
        num_valid: how many are held out for validation.
        job: the circumstances.
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
    """Uniform numbers for rehearsals, in three parts."""
    shape = sum(sizes), dim
    points = torch.rand(shape, generator=job.generator(0), device=job.device)
    return datasets.Split(*points.split(list(sizes)))

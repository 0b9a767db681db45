"""NICE as the whole model: a flow of additive couplings, trained by score matching."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.transformed import score_by_autograd
from scorematching.models import NICE
from scorematching.objectives import Objective
from scorematching.training import TrainConfig, train

_RATE, _VALIDATE_EVERY = 2e-3, 10


class NICEDensity(Distribution):
    """A trained NICE as a distribution.

    Args:
        model: in double precision.
        dim: D.
    """

    def __init__(self, model: NICE, dim: int) -> None:
        """Keep the model."""
        super().__init__(dim, like=next(model.parameters()).detach())
        self.model = model.requires_grad_(False)

    def _log_density(self, x: Tensor) -> Tensor:
        value: Tensor = self.model(x)
        return value

    def _score(self, x: Tensor) -> Tensor:
        return score_by_autograd(self._log_density, x)

    @torch.no_grad()
    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        return self.model.sample(n, generator)


def learn_nice(
    z_train: Tensor,
    z_valid: Tensor,
    objective: Objective,
    settings: Any,
    generator: torch.Generator,
) -> tuple[NICEDensity, float, int]:
    """Train a NICE on whitened points ``(N, D)``, in single precision.

    Returns:
        The distribution, its least held-out loss, and the number of steps.
    """
    with torch.device(z_train.device):
        model = NICE(z_train.shape[1], settings.hidden, generator=generator).float()
    config = TrainConfig(
        steps=settings.max_steps,
        batch_size=min(settings.batch_size, len(z_train)),
        lr=settings.learning_rate or _RATE,
        schedule="cosine",
        max_norm=100.0,
        validate_every=_VALIDATE_EVERY,
        patience=-(-settings.patience // _VALIDATE_EVERY),
    )
    result = train(
        model,
        objective,
        z_train.float(),
        config,
        validation=z_valid.float(),
        executor=("captured", "eager"),
        generator=generator,
        progress=bool(settings.verbose),
    )
    assert result.best_loss is not None
    return NICEDensity(model.double(), z_train.shape[1]), result.best_loss, result.steps

"""NICE as the whole model: a flow of additive couplings, trained by score matching."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.estimators.density.bases.transformed import score_by_autograd
from scorematching.estimators.density.fitting import Fit, Points, fit_module
from scorematching.estimators.time_limit import Clock
from scorematching.models import NICE
from scorematching.objectives import Objective

_RATE = 2e-3


class NICEDensity(Distribution):
    """A trained NICE, in double precision, as a distribution."""

    def __init__(self, model: NICE, dim: int) -> None:
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
    points: Points, objective: Objective, settings: Any, generator: torch.Generator
) -> tuple[NICEDensity, Fit]:
    """Train a NICE on whitened points; returns the distribution, and its training."""
    dim = points.train.shape[1]
    with torch.device(points.train.device):
        model = NICE(dim, settings.hidden, generator=generator).float()
    clock = Clock(settings.max_seconds)
    fit = fit_module(
        model, objective, points, settings, generator, rate=_RATE, schedule="cosine", clock=clock
    )
    return NICEDensity(model.double(), dim), fit

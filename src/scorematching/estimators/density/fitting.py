"""Training of a module with early stopping, by the arguments of `DensityEstimator`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scorematching.estimators.time_limit import Clock, StopInTime
from scorematching.training import TrainConfig, train
from scorematching.training.progress import Record

_VALIDATE_EVERY, _MAX_NORM = 10, 100.0


class Points(NamedTuple):
    """Training points and held-out points, ``(N, D)`` each."""

    train: Tensor
    valid: Tensor


class Fit(NamedTuple):
    """The least held-out loss, the number of steps taken, and the losses on the way."""

    loss: float
    steps: int
    history: list[Record]


def fit_module(
    module: nn.Module,
    loss: Callable[..., Tensor],
    points: Points,
    settings: Any,
    generator: torch.Generator,
    *,
    rate: float,
    schedule: str = "constant",
    clock: Clock | None = None,
) -> Fit:
    """Train in place, in single precision; the weights of the least held-out loss are kept.

    The loss is an objective, or ``(module, batch, generator=...) -> (N,)``. The settings have
    ``max_steps``, ``batch_size``, ``patience`` and ``learning_rate``, which is ``rate`` where it is
    None. A clock ends training early.
    """
    config = TrainConfig(
        steps=settings.max_steps,
        batch_size=2 * (min(settings.batch_size, len(points.train)) // 2),
        lr=settings.learning_rate or rate,
        schedule=schedule,
        max_norm=_MAX_NORM,
        validate_every=_VALIDATE_EVERY,
        patience=-(-settings.patience // _VALIDATE_EVERY),
    )
    result = train(
        module,
        loss,
        points.train.float(),
        config,
        validation=points.valid.float(),
        executor=("captured", "eager"),
        callbacks=[StopInTime(clock or Clock())],
        generator=generator,
    )
    assert result.best_loss is not None
    return Fit(result.best_loss, result.steps, result.history)

"""The loss on held-out points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points
from scorematching.training.alternating import Loss
from scorematching.training.data import Transform

Validation = Tensor | Callable[[Any], float]
"""Held-out points ``(N, *event)``, or a function from the model to a loss."""

_CHUNK = 1024


def make_validation(
    model: Any,
    validation: Validation | None,
    objective: Loss,
    transform: Transform | None,
    generator: torch.Generator,
    device: torch.device,
) -> Callable[[], float] | None:
    """The validation as a function without arguments; None without validation.

    Args:
        model: what is validated.
        validation: as in `train`.
        objective: for held-out points.
        transform: applied to held-out points, as to batches.
        generator: source of randomness.
        device: where the model is.
    """
    if validation is None:
        return None
    if not isinstance(validation, Tensor):
        if not callable(validation):
            raise TypeError(
                "validation must be held-out points or a function of the model, got "
                f"{type(validation).__name__}; pass a tensor"
            )
        return lambda: float(validation(model))
    if transform is None:
        check_points(validation, "validation")
    batches = validation.to(device).split(_CHUNK)

    def mean_loss() -> float:
        points = (x if transform is None else transform(x, generator) for x in batches)
        losses = [objective(model, x, generator=generator) for x in points]
        return torch.cat(losses).double().mean().item()

    return mean_loss


@contextmanager
def temporary_state(generator: torch.Generator, state: Tensor) -> Iterator[None]:
    """Another state of the generator inside the block."""
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)

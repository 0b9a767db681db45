"""The loss on held-out points."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points
from scorematching.training.alternating import Loss
from scorematching.training.data import Batches
from scorematching.training.memory import Parts

Validation = Tensor | Callable[[Any], float]
"""Held-out points ``(N, *event)``, or a function from the model to a loss."""

_CHUNK = 1024


def make_validation(
    model: Any, validation: Validation | None, objective: Loss, like: Batches
) -> Callable[[], float] | None:
    """The validation as a function without arguments; None without validation.

    Held-out points are treated like the batches of training: their device, transform and generator.
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
    if like.transform is None:
        check_points(validation, "validation")
    x = validation.to(like.ranks.device)

    def losses(part: Tensor) -> Tensor:
        return objective(model, like.prepare(part), generator=like.generator)

    parts = Parts(losses, like.generator, _CHUNK)
    return lambda: parts(x).double().mean().item()


@contextmanager
def temporary_state(generator: torch.Generator, state: Tensor) -> Iterator[None]:
    """Another state of the generator inside the block."""
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)

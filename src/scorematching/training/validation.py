"""The loss on held-out points, and the conditions under which it is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_points
from scorematching.training.alternating import Loss
from scorematching.training.step import assign

Validation = Tensor | Callable[[Any], float]
"""Held-out points ``(N, *event)``, or a function from the model to a loss."""


def validator(
    model: Any,
    validation: Validation | None,
    objective: Loss,
    validation_objective: Loss | None,
    generator: torch.Generator,
    device: torch.device,
) -> Callable[[], float] | None:
    """The validation as a function of nothing."""
    if validation_objective is not None and not isinstance(validation, Tensor):
        raise ValueError(
            "validation_objective must come with held-out points, got "
            f"validation={type(validation).__name__}; a function needs no objective"
        )
    if validation is None:
        return None
    if not isinstance(validation, Tensor):
        if not callable(validation):
            raise TypeError(
                "validation must be held-out points or a function of the model, got "
                f"{type(validation).__name__}; pass a tensor"
            )
        return lambda: float(validation(model))
    check_points(validation, "validation")
    batches, loss = validation.to(device).split(1024), validation_objective or objective

    def held_out() -> float:
        losses = [loss(model, x, generator=generator) for x in batches]
        return torch.cat(losses).double().mean().item()

    return held_out


@contextmanager
def noise_of(generator: torch.Generator, state: Tensor) -> Iterator[None]:
    """The generator in another state, for a while."""
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)


@contextmanager
def weights_of(parameters: list[nn.Parameter], values: list[Tensor]) -> Iterator[None]:
    """The module with other weights, for a while; in place, as a CUDA graph knows them."""
    kept = [p.detach().clone() for p in parameters[: len(values)]]
    assign(parameters, values)
    try:
        yield
    finally:
        assign(parameters, kept)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode and without gradients, for a while."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for m, training in modes:
            m.training = training

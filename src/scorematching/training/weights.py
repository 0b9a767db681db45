"""The weights of a module: copied, replaced for a while, checked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and buffers."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def is_finite(module: nn.Module) -> bool:
    """Whether all weights and buffers are finite."""
    values = [v for v in module.state_dict().values() if v.is_floating_point()]
    return bool(torch.stack([v.isfinite().all() for v in values]).all())


def assign(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    """Copy values into parameters; without values, do nothing."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values):
            parameter.copy_(value)


@contextmanager
def temporary_weights(
    parameters: Sequence[nn.Parameter], values: Sequence[Tensor]
) -> Iterator[None]:
    """Other values in the parameters inside the block; in place, as CUDA graphs need it."""
    kept = [p.detach().clone() for p in parameters[: len(values)]]
    assign(parameters, values)
    try:
        yield
    finally:
        assign(parameters, kept)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode and without gradients inside the block."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for m, training in modes:
            m.training = training

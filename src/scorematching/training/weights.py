"""The weights of a module: copied, replaced for a while, checked, split over processes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and buffers."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def check_state(module: nn.Module, stored: bool) -> None:
    """Require a state of tensors, of kinds that files of a run can hold if it is ``stored``.

    Raises:
        TypeError: names the entry of the state dict that is something else.
        ValueError: names the tensor that no file can hold, before the first step is taken.
    """
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the state_dict of the model must hold tensors only, got {type(value).__name__} "
                f"for {name}; keep it in an attribute, or as a tensor in a buffer, in place of "
                "get_extra_state"
            )
        if stored and (value.layout != torch.strided or value.dtype == torch.complex128):
            kind = value.dtype if value.layout == torch.strided else value.layout
            raise ValueError(
                f"a folder takes dense tensors, and complex ones in complex64, got {kind} for "
                f"{name}; register a constant with persistent=False, keep a complex parameter as "
                "torch.view_as_real of it, or train without folder="
            )


def split_state(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers split like those of a module."""
    own = module.state_dict()
    return {name: split_like(value, own.get(name)) for name, value in state.items()}


def is_finite(module: nn.Module) -> bool:
    """Whether all weights that this process holds are finite, and no buffer is NaN.

    Buffers may hold infinities, as masks of attention do.
    """
    weights = dict(module.named_parameters(remove_duplicate=False))
    found = [
        local(value).isfinite().all() if name in weights else ~local(value).isnan().any()
        for name, value in module.state_dict().items()
        if value.is_floating_point() or value.is_complex()
    ]
    return bool(torch.stack(found).all())


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


# Tensors, sharded or not.


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is split over processes."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """The whole of a tensor; all processes must call this where it is split."""
    full: Tensor = tensor.detach().full_tensor() if is_sharded(tensor) else tensor
    return full


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this process holds."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def split_like(value: Tensor, other: Any) -> Tensor:
    """A whole tensor split like another one, if that is split and of the same shape.

    All processes must call this. The parts are those of the main process's tensor.
    """
    if not is_sharded(other) or is_sharded(value) or value.shape != other.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    moved = value.to(other.device, other.dtype)
    split: Tensor = distribute_tensor(moved, other.device_mesh, other.placements)
    return split

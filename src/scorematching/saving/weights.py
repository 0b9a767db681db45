"""The weights of a module and the state around them, and back into a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scorematching.errors import SavedModelError

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def modes(module: nn.Module) -> dict[str, Any]:
    """Which parameters are frozen, and which modules are in training mode."""
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    parts = module.named_modules(remove_duplicate=False)
    other = [name for name, part in parts if part.training is not module.training]
    return {"training": module.training, "other_mode": other, "frozen": frozen}


def restore(module: nn.Module, state: dict[str, Tensor], about: dict[str, Any]) -> nn.Module:
    """Put weights and modes into a module that was built anew."""
    dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
    if len(dtypes) == 1:  # also for buffers that are no part of the state
        module.to(dtypes.pop())
    for value in state.values():
        module.to(value.device)
        break
    try:
        module.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise SavedModelError(
            f"model.safetensors must hold the weights of {type(module).__name__}, got others: "
            f"{error}; load the folder with the versions in its config.json"
        ) from error
    frozen, other = set(about["frozen"]), set(about["other_mode"])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, part in module.named_modules():
        part.training = about["training"] is not (name in other)
    return module


def check_plain(module: nn.Module) -> None:
    """Refuse modules whose behaviour is not all in their arguments and weights.

    Raises:
        TypeError: for hooks, replaced methods and shared weights.
    """
    for name, part in module.named_modules():
        if any(getattr(part, hooks) for hooks in _HOOKS) or "forward" in vars(part):
            raise TypeError(
                f"model must have no hooks and no replaced forward, got some in "
                f"{name or 'the model itself'}, which would be lost; remove them first"
            )
    for all_of in (module.named_parameters, module.named_buffers):
        if len(list(all_of())) == len(list(all_of(remove_duplicate=False))):
            continue
        raise TypeError(
            "model must not use one weight in two places, got one that is shared and would be "
            "two after loading; save model.state_dict() instead"
        )


def check_rebuilt(module: nn.Module, rebuilt: nn.Module) -> None:
    """Refuse a module that was changed after its constructor, before anything is written.

    Raises:
        TypeError: if layers or shapes differ from those of a module with the same arguments.
    """
    if repr(module) != repr(rebuilt) or _shapes(module) != _shapes(rebuilt):
        raise TypeError(
            f"model must be as its constructor made it, got a {type(module).__name__} whose layers "
            "were replaced; save model.state_dict() instead"
        )


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in module.state_dict().items()}

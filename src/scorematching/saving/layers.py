"""Layers of torch.nn as the arguments of their constructors."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from scorematching.errors import SavedModelError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_SKIPPED = ("device", "dtype")


def is_layer(kind: type) -> bool:
    """Whether a class is one of torch.nn's modules itself, not a subclass."""
    return issubclass(kind, nn.Module) and getattr(nn, kind.__name__, None) is kind


def is_container(layer: nn.Module) -> bool:
    """Whether a layer is a list of others."""
    return type(layer) in _CONTAINERS


def layer_arguments(layer: nn.Module) -> dict[str, Any]:
    """The arguments of a layer, read from its attributes of the same names.

    Raises:
        TypeError: if the layer does not keep its arguments.
    """
    found: dict[str, Any] = {}
    if type(layer).__init__ is nn.Module.__init__ or type(layer) is nn.Identity:
        return found  # Tanh and others without arguments, or that ignore them
    for name, parameter in inspect.signature(type(layer)).parameters.items():
        if name in _SKIPPED or name.startswith("_"):
            continue
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not named or not hasattr(layer, name):
            raise TypeError(
                f"layers must keep their arguments to be saved, got {type(layer).__name__}, which "
                f"does not keep {name}; save the weights alone, "
                "safetensors.torch.save_file(model.state_dict(), path)"
            )
        value = getattr(layer, name)
        found[name] = value is not None if name == "bias" else value
    return found


def find_layer(name: Any) -> Any:
    """The class of torch.nn of that name.

    Raises:
        SavedModelError: if torch.nn has no such module.
    """
    kind = getattr(nn, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or not is_layer(kind):
        raise SavedModelError(
            f"config.json must name layers of torch.nn, got {name!r}; this version of torch "
            "lacks it, or the folder was written by another program"
        )
    return kind

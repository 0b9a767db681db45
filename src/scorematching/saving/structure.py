"""Modules in JSON: what they are made of, without their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from scorematching.saving.arguments import ARGUMENTS, Factory
from scorematching.saving.classes import MODULES, find_class, name_of
from scorematching.saving.layers import find_layer, is_container, is_layer, layer_arguments

Encode = Callable[[Any], Any]


def describe(module: nn.Module, encode: Encode) -> dict[str, Any]:
    """A module as a class and arguments; ``encode`` is for arguments that are no modules.

    Raises:
        TypeError: if the module is of another class than those that can be saved.
    """
    name = name_of(type(module), MODULES)
    if name is not None:
        found = ARGUMENTS[name](module)
        return {"class": name, "arguments": {k: _value(v, encode) for k, v in found.items()}}
    if not is_layer(type(module)):
        raise TypeError(_refusal(module))
    about: dict[str, Any] = {"layer": type(module).__name__}
    if is_container(module):
        children = _children(module)
        return {**about, "children": [[key, describe(part, encode)] for key, part in children]}
    found = layer_arguments(module)
    return {**about, "arguments": {k: _value(v, encode) for k, v in found.items()}}


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts of a container, one that stands in several places once for each."""
    parts = module.named_modules(remove_duplicate=False)
    return [(name, part) for name, part in parts if name and "." not in name]


def build(about: dict[str, Any], decode: Encode) -> nn.Module:
    """A module with new weights from what `describe` returned."""
    layer = "layer" in about
    kind = find_layer(about["layer"]) if layer else find_class(about["class"], MODULES)
    if "children" in about:
        return _container(kind, about["children"], decode)
    arguments = {k: _argument(v, decode) for k, v in about["arguments"].items()}
    module: nn.Module = kind(**arguments)
    return module


def build_quietly(about: dict[str, Any], decode: Encode) -> nn.Module:
    """`build` on the CPU, without a trace in torch's random state."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return build(about, decode)


def _container(kind: Any, children: list[Any], decode: Encode) -> nn.Module:
    module: nn.Module = kind()
    for key, part in children:
        module.add_module(key, build(part, decode))
    return module


def _value(value: Any, encode: Encode) -> Any:
    if isinstance(value, nn.Module):
        return {"kind": "structure", **describe(value, encode)}
    if isinstance(value, Factory):
        return {"kind": "factory", **describe(value.example, encode)}
    return encode(value)


def _argument(value: Any, decode: Encode) -> Any:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == "structure":
        return build(value, decode)
    if kind == "factory":
        return lambda: build(value, decode)
    return decode(value)


def _refusal(module: nn.Module) -> str:
    kind = type(module)
    return (
        f"model must be built of the package's models and of layers of torch.nn, got "
        f"{kind.__module__}.{kind.__qualname__}, whose code would not be in the folder; save its "
        "weights, safetensors.torch.save_file(model.state_dict(), path), and load them into a "
        "new instance"
    )

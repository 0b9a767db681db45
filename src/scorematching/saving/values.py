"""Objects as JSON and named tensors, and back; only listed classes are encoded or made."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scorematching.derivatives.memory import ATTRIBUTE
from scorematching.errors import SavedModelError
from scorematching.saving.classes import RECORDS, find_class, name_of
from scorematching.saving.frames import find_frame, is_frame
from scorematching.saving.structure import build_quietly, describe
from scorematching.saving.tensors import axes_in_memory, from_file, to_file
from scorematching.saving.weights import check_plain, check_rebuilt, modes, restore


class Encoder:
    """Turns objects into JSON, and collects their tensors.

    Attributes:
        tensors: contiguous copies on the CPU, by name.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[int, tuple[Tensor, Any]] = {}  # holds tensors, so that ids stay theirs

    def encode(self, value: Any, path: str) -> Any:
        """A value as JSON; ``path`` names its tensors and appears in messages.

        Raises:
            TypeError: if the value is of a class that cannot be saved.
        """
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, float, np.bool_, np.integer, np.floating)):
            return _number(value)
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, nn.Module):
            return self.module(value, path)
        if isinstance(value, dict):
            pairs = [
                [self.encode(k, path), self.encode(v, _join(path, k))] for k, v in value.items()
            ]
            return {"kind": "dict", "items": pairs}
        if type(value) in (list, tuple, torch.Size):
            return self._sequence(value, path)
        return {"kind": "frame"} if is_frame(value) else self._record(value, path)

    def module(self, module: nn.Module, path: str) -> dict[str, Any]:
        """A module: its structure as JSON, its weights as tensors under their own names."""
        check_plain(module)
        about = describe(module, lambda value: self.encode(value, path))
        check_rebuilt(module, build_quietly(about, Decoder({}).decode))
        state = module.state_dict()
        self.tensors |= {_join(path, name): to_file(value) for name, value in state.items()}
        axes = {name: axes_in_memory(value) for name, value in state.items()}
        other = {name: order for name, order in axes.items() if order is not None}
        return {"kind": "module", "weights": path, "axes": other, **about, **modes(module)}

    def attributes(self, values: dict[str, Any], path: str) -> dict[str, Any]:
        """Attributes by name, without what is measured again after loading."""
        kept = {name: value for name, value in values.items() if name != ATTRIBUTE}
        return {name: self.encode(value, _join(path, name)) for name, value in kept.items()}

    def _tensor(self, value: Tensor, path: str) -> Any:
        if id(value) not in self._known:
            self.tensors[path] = to_file(value)
            node = {"kind": "tensor", "name": path, "axes": axes_in_memory(value)}
            self._known[id(value)] = value, node
        return self._known[id(value)][1]

    def _array(self, value: Any, path: str) -> Any:
        if value.dtype == object:
            return {"kind": "objects", "values": self.encode(value.tolist(), path)}
        if value.dtype.kind not in "biuf":
            raise TypeError(
                f"{path} must be an array of numbers to be saved, got {value.dtype}; convert it "
                "with .astype(float)"
            )
        return {"kind": "array", "values": self._tensor(torch.from_numpy(value.copy()), path)}

    def _sequence(self, value: Any, path: str) -> Any:
        encoded = [self.encode(part, _join(path, i)) for i, part in enumerate(value)]
        return encoded if isinstance(value, list) else {"kind": "tuple", "values": encoded}

    def _record(self, value: Any, path: str) -> Any:
        name = name_of(type(value), RECORDS)
        if name is None:
            kind = type(value)
            raise TypeError(
                f"{path or 'model'} must be a number, a text, a tensor or an object of the "
                f"package to be saved, got {kind.__module__}.{kind.__qualname__}, whose code "
                "would not be in the folder; replace it, or save its parts by their own means"
            )
        values = vars(value)
        if is_dataclass(value):
            values = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return {"kind": "record", "class": name, "attributes": self.attributes(values, path)}


class Decoder:
    """Makes objects from JSON and tensors.

    Args:
        tensors: by name, from the file.
        device: where tensors of the result live.
    """

    def __init__(self, tensors: dict[str, Tensor], device: Any = "cpu") -> None:
        self.tensors, self.device = tensors, device
        self._made: dict[str, Tensor] = {}

    def decode(self, node: Any) -> Any:
        """The object of what `Encoder.encode` returned.

        Raises:
            SavedModelError: if it names a class that is not listed, or a tensor that is missing.
        """
        if isinstance(node, list):
            return [self.decode(part) for part in node]
        if not isinstance(node, dict):
            return node
        makers = {
            "array": lambda n: self.decode(n["values"]).cpu().numpy(),
            "dict": lambda n: {self.decode(key): self.decode(value) for key, value in n["items"]},
            "float": lambda n: float(n["value"]),
            "frame": lambda n: find_frame(),
            "module": self._module,
            "objects": lambda n: np.array(self.decode(n["values"]), dtype=object),
            "record": self._record,
            "tensor": self._tensor,
            "tuple": lambda n: tuple(self.decode(n["values"])),
        }
        if node.get("kind") not in makers:
            raise SavedModelError(
                f"config.json must hold kinds of values that are known, got {node.get('kind')!r}; "
                "load the folder with the version of the package that wrote it"
            )
        return makers[node["kind"]](node)

    def attributes(self, nodes: dict[str, Any]) -> dict[str, Any]:
        """Attributes by name."""
        return {name: self.decode(node) for name, node in nodes.items()}

    def _tensor(self, node: Any) -> Tensor:
        name = node["name"]
        if name not in self.tensors:
            raise SavedModelError(
                f"model.safetensors must hold the tensor {name!r}, got none; save the model again"
            )
        if name not in self._made:
            self._made[name] = from_file(self.tensors[name], node["axes"], self.device)
        return self._made[name]

    def _module(self, node: Any) -> nn.Module:
        start = f"{node['weights']}." if node["weights"] else ""
        found = {n.removeprefix(start): t for n, t in self.tensors.items() if n.startswith(start)}
        state = {n: from_file(t, node["axes"].get(n), self.device) for n, t in found.items()}
        return restore(build_quietly(node, self.decode), state, node)

    def _record(self, node: Any) -> Any:
        kind: Any = find_class(node["class"], RECORDS)
        values = self.attributes(node["attributes"])
        if hasattr(kind, "__dataclass_fields__"):
            return kind(**values)
        made = object.__new__(kind)
        vars(made).update(values)
        return made


def _number(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return {"kind": "float", "value": repr(plain)}
    return plain


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)

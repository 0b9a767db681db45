"""Masks of an evaluation: on which side of its possible kinks every point lies.

The mask of an operation is the outcome, at every point, of its comparison, sign, rounding or
search: ``z > 0`` for a ReLU, the indices for a maximum. A mask that differs between two points
tells that a kink may lie between them, and which operation it belongs to. Operations are observed
where torch dispatches them, which includes those inside recurrent cells, losses and norms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ZERO = frozenset(
    "relu leaky_relu elu celu selu abs sign sgn _prelu_kernel rrelu_with_noise".split()
)
BOUNDS = frozenset("clamp clamp_min clamp_max hardtanh relu6 threshold hardshrink".split())
WHOLE = frozenset("floor ceil round trunc floor_divide".split())
PAIRS = frozenset("maximum minimum fmax fmin".split())
UNMASKED = frozenset(
    "sqrt linalg_vector_norm grid_sampler_2d grid_sampler_3d _cdist_forward".split()
)
"""Operations that can have a kink without a mask, as broken powers can."""


@dataclass(frozen=True)
class Mask:
    """Outcome of one operation at every point, ``rows: (B, K)``, and its description."""

    rows: Tensor
    operation: str


class Recorder(TorchDispatchMode):
    """A mode that observes every operation of torch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, for seconds, at the first operation


class MaskRecorder(Recorder):
    """Collects the masks of one evaluation.

    Args:
        rows: number of points, by which the batch axis is recognised.
        name: returns the name of the current call, as the model's code has it.
        entry: code of the function that calls the model, if operations are to be described with
            the place that called them. Operations without a mask are then collected too, with an
            empty one.
    """

    def __init__(self, rows: int, name: Callable[[], str], entry: CodeType | None = None) -> None:
        super().__init__()
        self.rows, self.name, self.entry = rows, name, entry
        self.masks: list[Mask] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.split("::")[1]
        z = args[0] if args and isinstance(args[0], Tensor) else None
        if z is not None and name.endswith("_"):
            z, name = z.clone(), name.rstrip("_")  # the operation overwrites it
        out = func(*args, **(kwargs or {}))
        if z is not None:
            for mask in _outcomes(name, z, args[1:], out):
                self._keep(name, mask)
            broken = name == "pow" and isinstance(args[1], float) and args[1] % 1 != 0
            if self.entry is not None and (name in UNMASKED or broken):
                self._keep(name, z.new_empty(self.rows, 0))
        return out

    def _keep(self, name: str, mask: Tensor) -> None:
        rows = _by_row(mask, self.rows)
        if rows is not None:
            name = self.name().strip("_") or name
            place = "" if self.entry is None else f" at {_place(self.entry)}"
            self.masks.append(Mask(rows, name + place))


def _outcomes(name: str, z: Tensor, rest: Sequence[Any], out: Any) -> list[Tensor]:
    """Tensors that change where an operation of z passes a kink.

    They include all indices and truth values that an operation makes of numbers.
    """
    if name in ("where", "masked_fill"):
        return [z if name == "where" else rest[0]]
    if not z.is_floating_point():
        return []
    outs = out if isinstance(out, (tuple, list)) else (out,)
    found = [
        v for v in outs if isinstance(v, Tensor) and not (v.is_floating_point() or v.is_complex())
    ]
    own = _outcome(name, z, rest, out)
    return found if own is None else [own, *found]


def _outcome(name: str, z: Tensor, rest: Sequence[Any], out: Any) -> Tensor | None:
    if name in ZERO:
        return z > 0
    if name in BOUNDS:
        return torch.sign(out - z)
    if name in WHOLE:
        return torch.as_tensor(out)
    if name in PAIRS:
        return z > rest[0]
    if name in ("hardswish", "hardsigmoid"):
        return torch.sign(z.clamp(-3, 3) - z)
    if name in ("remainder", "fmod"):
        return torch.round((z - out) / rest[0])
    return _rarer_outcome(name, z, rest, out)


def _rarer_outcome(name: str, z: Tensor, rest: Sequence[Any], out: Any) -> Tensor | None:
    if name in ("amax", "amin"):
        best = getattr(torch, name)(z, rest[0] if rest else (), keepdim=True)
        return z == best
    if name == "linalg_vector_norm" and rest and rest[0] == 1:
        return z > 0
    if name == "linalg_vector_norm" and rest and rest[0] == float("inf"):
        return z.abs() == z.abs().amax(rest[1] if len(rest) > 1 else (), keepdim=True)
    if name in ("huber_loss", "smooth_l1_loss"):
        return (z - rest[0]).abs() > (rest[2] if len(rest) > 2 else 1.0)
    return torch.sign(out) if name == "softshrink" else None


def _by_row(mask: Tensor, rows: int) -> Tensor | None:
    """A mask as ``(rows, K)``; None if no axis is the batch."""
    mask = mask.to(torch.int32) if mask.is_floating_point() else mask
    if rows in mask.shape:
        return mask.movedim(mask.shape.index(rows), 0).reshape(rows, -1)
    if mask.numel() and mask.ndim and mask.shape[0] % rows == 0:
        return mask.reshape(rows, -1)
    return None


def _place(entry: CodeType) -> str:
    """Where the model calls the current operation: module, by its path in the model, and line."""
    modules: list[nn.Module] = []
    line = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not entry:
        owner, package = frame.f_locals.get("self"), frame.f_globals.get("__name__", "")
        if isinstance(owner, nn.Module):
            modules.append(owner)
        if not line and not package.startswith(("torch", "scorematching.derivatives")):
            line = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    if not modules:
        return line
    paths = (path for path, module in modules[-1].named_modules() if module is modules[0])
    label = f"{next(paths, '')} {type(modules[0]).__name__}".strip()
    return f"{label} ({line})" if line else label

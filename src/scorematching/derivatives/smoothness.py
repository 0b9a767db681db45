"""Which operations have kinks, and how smooth a model has to be.

Score matching integrates by parts, and its parameter gradient differentiates under the integral:
both need derivatives that exist everywhere, not almost everywhere. A ReLU log-density gives a
loss with no curvature in it and a gradient of zero; an ELU gives the right loss and a gradient
that can have the wrong sign. Nothing fails, so the engine looks.

==============================  =====================  ==================
question                        log-density            vector field
==============================  =====================  ==================
score, to train                 C1                     C0
curvature or divergence         C2 to train, C1 else   C1 to train, C0 else
==============================  =====================  ==================
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from torch import nn

from scorematching.errors import SmoothnessError


@dataclass(frozen=True)
class Kink:
    """A place where a model is not smooth.

    Attributes:
        operation: its name.
        order: k where the function is C^k there and no smoother; -1 for a jump.
        vanishes: whether it is zero at the kink, so that its k-th power is smoother.
        where: the module and line that called it.
    """

    operation: str
    order: int
    vanishes: bool
    where: str


ORDERS = {
    "relu": 0, "leaky_relu": 0, "relu6": 0, "prelu": 0, "rrelu": 0, "hardtanh": 0, "hardswish": 0,
    "hardsigmoid": 0, "selu": 0, "elu": 1, "celu": 1, "softsign": 1, "softshrink": 0, "abs": 0,
    "clamp": 0, "clip": 0, "clamp_min": 0, "clamp_max": 0, "threshold": -1, "hardshrink": -1,
    "maximum": 0, "minimum": 0, "fmax": 0, "fmin": 0, "max": 0, "min": 0, "amax": 0, "amin": 0,
    "sort": 0, "topk": 0, "median": 0, "max_pool1d": 0, "max_pool2d": 0, "max_pool3d": 0,
    "adaptive_max_pool1d": 0, "adaptive_max_pool2d": 0, "smooth_l1_loss": 1, "huber_loss": 1,
    "l1_loss": 0, "frac": -1, "remainder": -1, "fmod": -1,
}  # fmt: skip
"""k for each operation that is C^k and no smoother; every other operation counts as smooth.

(A norm is singular at one point only, which integrates away in two dimensions and more.)
"""

VANISHING = frozenset("relu leaky_relu prelu abs".split())
"""Those that are zero at their kink, like |z|: their k-th power is C^(k-1)."""

EVEN = frozenset(["abs"])
"""Those whose even powers are smooth altogether."""


def find_kink(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Kink | None:
    """The kink that an operation introduces, if any."""
    order = ORDERS.get(name)
    if order is None:
        return None
    if name == "elu" and (args[1] if len(args) > 1 else kwargs.get("alpha", 1.0)) != 1.0:
        order = 0
    return Kink(name, order, name in VANISHING, _caller())


def lift_kink(name: str, args: Sequence[Any], kinked: Sequence[Any]) -> Kink | None:
    """The kink of a power of a function that vanishes at its kink; None if this is not one.

    A smooth result is a kink of order so high that no objective minds it.
    """
    if len({id(x) for x in kinked}) != 1 or not kinked[0].kink.vanishes:
        return None
    kink: Kink = kinked[0].kink
    squared = name == "square" or (name == "mul" and args[0] is args[1])
    power = 2 if squared else args[1] if name == "pow" and args[0] is kinked[0] else None
    if not isinstance(power, (int, float)) or power < 2:
        return None
    smooth = kink.operation in EVEN and power % 2 == 0
    return replace(kink, order=99 if smooth else math.ceil(power * (kink.order + 1)) - 1)


def require(kinks: Sequence[Kink], order: int, question: str) -> None:
    """Raise `SmoothnessError` for the first kink that is not C^order."""
    for kink in kinks:
        if kink.order < order:
            level = f"C{kink.order}" if kink.order >= 0 else "discontinuous"
            raise SmoothnessError(
                f"the model must be C{order} in x for {question}, got {kink.operation} at "
                f"{kink.where}, which is {level}: the loss or its gradient would be silently "
                "wrong; use softplus, SiLU, GELU or tanh there, or switch this check off with "
                "LogDensityField(model, check_smoothness=False) or the same of VectorField"
            )


def _caller() -> str:
    """Where the operation was called: its module, by its path in the model, and its line."""
    modules: list[nn.Module] = []
    place = ""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "run":  # beyond lies the caller's loop
        owner, name = frame.f_locals.get("self"), frame.f_globals.get("__name__", "")
        if isinstance(owner, nn.Module):
            modules.append(owner)
        if not place and name.split(".")[0] not in ("torch", "scorematching"):
            place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    path = _path(modules[0], modules[-1]) if modules else ""
    return f"{path} ({place})" if path and place else path or place or "an unknown place"


def _path(module: nn.Module, model: nn.Module) -> str:
    """The name of a module inside a model, such as ``net.1: ReLU``."""
    label = type(module).__name__
    path = next((name for name, child in model.named_modules() if child is module), "")
    return f"{path}: {label}" if path else label

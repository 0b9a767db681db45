"""What the engine knows about each operation of torch: one declaration per operation.

An operation is declared by the names under which torch offers it and is found by its function
object, so ``torch.exp``, ``Tensor.exp``, ``Tensor.exp_`` and ``aten.exp.default`` share one entry
and a user's own function called ``exp`` has none. Everything that asks about operations
(dispatch, `explain`, the tests of each rule, the page of supported operations) reads `OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Operation:
    """One operation and its rule.

    Attributes:
        name: the first name it was declared by.
        kind: "elementwise", "linear", "structural", "composed", "constant" or "nested jvp".
        rule: ``rule(call, *args, **kwargs)``, see `engine.trace.Call`.
        kink: k where the function is C^k and no smoother (-1 for a jump); None where it is smooth.
        inplace: position of the argument ``inplace``, for functions that have one.
        writes: whether this spelling writes into its first argument, as ``exp_`` does.
        facts: what the rule reads, such as the derivatives of an elementwise function.
    """

    name: str
    kind: str
    rule: Callable[..., Any]
    kink: int | None = None
    inplace: int | None = None
    writes: bool = False
    facts: Any = None

    @cached_property
    def key(self) -> tuple[str, str]:
        """Name and kind, by which operations are counted."""
        return self.name, self.kind

    @cached_property
    def may_write(self) -> bool:
        """Whether a call without keywords may write into its first argument."""
        return self.writes or self.inplace is not None


OPERATIONS: dict[Any, Operation] = {}
"""Operations by function object."""

_HOMES = (torch, torch.Tensor, F, torch.special, torch.linalg, torch.fft, torch._C._nn)
_PREFIXES = {"special": torch.special, "linalg": torch.linalg, "fft": torch.fft}


def declare(names: tuple[str, ...], operation: Operation) -> None:
    """Enter an operation under every function object that its names stand for."""
    for name in names:
        in_place = name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
        for function in spellings(name):
            OPERATIONS[function] = replace(operation, writes=operation.writes or in_place)
        if not name.endswith("_"):
            for function in spellings(f"{name}_"):
                OPERATIONS[function] = replace(operation, writes=True)


def spellings(name: str) -> Iterator[Any]:
    """The functions, methods, properties and ATen overloads of torch that have a name."""
    prefix, _, rest = name.partition("_")
    if prefix in _PREFIXES and hasattr(_PREFIXES[prefix], rest):
        yield getattr(_PREFIXES[prefix], rest)  # linalg_inv is torch.linalg.inv
    for home in _HOMES:
        found = getattr(home, name, None)
        if callable(found):
            yield found
        elif home is torch.Tensor and hasattr(found, "__get__"):
            yield found.__get__  # type: ignore[union-attr]
    packet = getattr(torch.ops.aten, name, None)
    if isinstance(packet, torch._ops.OpOverloadPacket):
        yield packet
        overloads = (getattr(packet, overload) for overload in packet.overloads())
        yield from (o for o in overloads if not any(a.is_out for a in o._schema.arguments))


def find(function: Any) -> Operation | None:
    """The operation of a function object; None where none was declared."""
    try:
        return OPERATIONS.get(function)
    except TypeError:  # an object without a hash
        return None


@lru_cache(maxsize=1024)
def kink_of(name: str) -> int | None:
    """K where the operation of a name is C^k and no smoother; None where it is smooth."""
    orders = {operation.kink for operation in OPERATIONS.values() if operation.name == name}
    return min((k for k in orders if k is not None), default=None)


def has_kink(name: str) -> bool:
    """Whether the operation of a name can have a kink."""
    return kink_of(name) is not None


def structural(
    *names: str,
    kind: str = "structural",
    kink: int | None = None,
    inplace: int | None = None,
    writes: bool = False,
) -> Callable[[Any], Any]:
    """Declare operations by a rule, ``rule(call, *args, **kwargs)``; ``call.name`` tells which."""

    def decorate(rule: Any) -> Any:
        for name in names:
            declare((name,), Operation(name, kind, rule, kink, inplace, writes))
        return rule

    return decorate


def constant(names: str) -> None:
    """Declare operations with no derivative to carry: comparisons, sizes, factories."""
    for name in names.split():
        declare((name,), Operation(name, "constant", lambda call: None))

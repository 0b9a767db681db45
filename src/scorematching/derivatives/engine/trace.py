"""Tracing: run a model on tensors that record how they depend on the points.

A `Traced` value is a tensor to the model's code. Every torch operation on it arrives at
`dispatch` through ``__torch_function__``, is found in `ops.registry`, and its rule hands it to the
value's `Tape` as an elementwise function, a linear map, a product or an operation with a dense
second derivative. An operation without a rule is decomposed into ATen operations
(`decomposition`); what cannot be followed raises `Untraceable`.

A traced value has no storage: an operation that reaches torch without passing `dispatch` (inside
``vmap``, say) arrives at ``__torch_dispatch__`` and raises `Untraceable` too, so that no operation
is missing from the derivatives.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching.derivatives.ops.registry import Operation, find

Tape = Any
"""A `tape.Tape`; that module imports this one."""


class Untraceable(Exception):
    """An operation that the engine cannot follow; the caller takes another route."""


class NeedsBuffers(Untraceable):
    """A traced value written into a plain tensor, such as ``torch.zeros`` makes."""


class NoRule(Exception):
    """Arguments that an operation's rule does not cover; the operation is decomposed instead."""


class Call(NamedTuple):
    """One operation on traced values, as a rule receives it.

    Attributes:
        tape: receives the result.
        func: the function that the model called, for use on plain tensors.
        operation: its entry in the registry.
    """

    tape: Any
    func: Any
    operation: Operation

    @property
    def name(self) -> str:
        """The operation's first name."""
        return self.operation.name


class Traced(Tensor):
    """A tensor that depends on the points.

    Attributes:
        p: its value, an ordinary tensor.
        u: tangents ``(M, *p.shape)``, or broadcastable to that; None on tapes without tangents.
        single: the tangent without its first axis, ``p.shape``, where M = 1; None elsewhere.
        s: mean second derivative along the directions, on tapes that carry it.
        tape: what is being recorded.
        axis: the axis of p that runs over the N points (N times c rows in their order, where a
            model has folded other axes into it); None where it is not known.
        viewed: whether it shares the memory of another value, so that it must not change in place.
        views: values that share its memory; while one is alive, it must not change in place.
        filled: False for a fresh buffer that no traced value has been written into yet.
    """

    p: Tensor
    tape: Tape
    axis: int | None
    s: Tensor | None = None
    viewed: bool = False
    views: Sequence[Any] = ()
    filled: bool = True
    _u: Tensor | None
    _single: Tensor | None

    @staticmethod
    def __new__(
        cls,
        p: Tensor,
        u: Tensor | None,
        tape: Tape,
        axis: int | None,
        single: Tensor | None = None,
    ) -> Traced:
        """Make a tensor of the shape of p, without storage.

        The other attributes keep the defaults of the class: setting them takes time, and every
        operation of a model makes a value.
        """
        if p.dtype is torch.float32 and p.is_cpu:  # the defaults; naming them takes a microsecond
            value: Traced = _make(cls, p.shape)
        else:
            value = _make(cls, p.shape, dtype=p.dtype, device=p.device)
        value.p, value._u, value._single = p, u, single
        value.tape, value.axis = tape, axis
        return value

    @property
    def u(self) -> Any:
        """Tangents ``(M, *p.shape)``."""
        if self._u is None and self._single is not None:
            self._u = self._single[None]
        return self._u

    @property
    def single(self) -> Tensor | None:
        """The tangent, where there is one."""
        u = self._u
        if (
            self._single is None
            and u is not None
            and u.shape[0] == 1
            and u.shape[1:] == self.p.shape
        ):
            self._single = u.squeeze(0)
        return self._single

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise Untraceable(f"{func}: called where torch hides it (vmap, torch.tensor, a transform)")

    # Properties of the value. Reading them from p avoids a dispatch for each.
    shape = property(lambda self: self.p.shape)
    dtype = property(lambda self: self.p.dtype)
    device = property(lambda self: self.p.device)
    ndim = property(lambda self: self.p.ndim)
    requires_grad = property(lambda self: self.p.requires_grad, lambda self, value: None)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __hash__(self) -> int:
        return id(self)

    def backward(
        self,
        gradient: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Refuse to be part of a loss: its graph is that of the trace.

        Raises:
            Untraceable: says what to do.
        """
        raise Untraceable(
            "a loss must not hold a value that the model keeps while it is traced, such as an "
            "auxiliary loss in an attribute; take derivatives by double backward, by "
            'LogDensityField(model, route="reverse") or the same of VectorField, or compute that '
            "value by another call of the model"
        )

    def become(self, value: Any) -> Traced:
        """Replace the value, as an operation in place does.

        Raises:
            Untraceable: if other values share its memory, which would have to change too, or if
                shape or dtype differ.
        """
        seen = self.viewed or any(view() is not None for view in self.views)
        if seen or value.shape != self.shape or value.dtype != self.dtype:
            raise Untraceable("a change in place that other values may see")
        if not isinstance(value, Traced):
            raise Untraceable("a traced value overwritten by a constant")
        self.p, self._u, self._single, self.s = value.p, value._u, value._single, value.s
        self.axis, self.filled = value.axis, True
        return self


_make = Tensor._make_wrapper_subclass


def unfilled(p: Tensor, tape: Tape) -> Traced:
    """A tensor that the model allocated, into which traced values may be written."""
    value = Traced(p, None, tape, None)
    value.filled = False
    return value


def dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Apply one torch operation to arguments of which at least one is traced.

    Operations without derivatives run on plain tensors. An operation in place is computed as a new
    value, which then replaces that of its first argument. Buffers that no traced value has been
    written into count as constants.
    """
    operation = find(func)
    if operation is not None and operation.kind == "constant":
        return func(*plain(args), **plain(kwargs))
    tape = args[0].tape if args and isinstance(args[0], Traced) else _tape_of(args, kwargs)
    if torch.is_grad_enabled() != tape.recording:
        return _without_gradient(tape, func, args, kwargs)
    if operation is not None and not (kwargs or operation.may_write or tape.has_buffers):
        return _apply(tape, func, operation, args, kwargs)  # as most calls are
    target = args[0] if operation is not None and _writes(operation, args, kwargs) else None
    if target is not None and not isinstance(target, Traced):
        raise NeedsBuffers(f"{name_of(func)}: writes traced values into a tensor not traced")
    if tape.has_buffers:
        args, kwargs = _without_buffers(args, kwargs)
        if not _any_traced(args, kwargs):
            y = func(*args, **kwargs)
            if target is not None:
                return target
            copied = operation is not None and operation.name in _COPIES
            return unfilled(y, tape) if copied else y
    y = _apply(tape, func, operation, *_normalised(operation, args, kwargs))
    return y if target is None else target.become(y)


def _apply(
    tape: Tape, func: Any, operation: Operation | None, args: Any, kwargs: dict[str, Any]
) -> Any:
    """The result by the operation's rule, or by decomposition where no rule covers the call."""
    if operation is not None:
        tape.met.append(operation.key)
        try:
            return operation.rule(Call(tape, func, operation), *args, **kwargs)
        except (NoRule, TypeError):
            tape.met.remove(operation.key)
    return tape.unknown(func, args, kwargs)


def _normalised(
    operation: Operation | None, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The call in one spelling: first argument by position, ``dim`` for ``axis``, not in place."""
    if kwargs:
        kwargs = {_KEYWORDS.get(k, k): v for k, v in kwargs.items() if k not in ("out", "inplace")}
        if "input" in kwargs and not args:
            args = (kwargs.pop("input"),)
    if operation is not None and operation.inplace is not None and len(args) > operation.inplace:
        args = (*args[: operation.inplace], False, *args[operation.inplace + 1 :])
    return args, kwargs


_COPIES = frozenset(("clone", "to", "double", "float"))
"""Operations that make a fresh buffer of a fresh buffer."""

_KEYWORDS = {"axis": "dim", "keepdims": "keepdim", "self": "input"}


def _writes(operation: Operation, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call changes its first argument in place."""
    if kwargs and kwargs.get("out") is not None:
        raise Untraceable(f"{operation.name}: writes to out=")
    place = operation.inplace
    asked = place is not None and len(args) > place and args[place] is True
    return operation.writes or asked or kwargs.get("inplace") is True


def _without_gradient(tape: Tape, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation under ``no_grad``: a constant, as autograd takes it.

    Raises:
        Untraceable: inside a custom autograd function, whose forward pass torch runs under
            ``no_grad`` although its result has a derivative.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is torch.autograd.Function.apply.__func__.__code__:  # type: ignore[attr-defined]
            owner = frame.f_locals.get("cls")
            raise Untraceable(f"{getattr(owner, '__name__', 'a')}: a custom autograd function")
        frame = frame.f_back
    if not tape.recording:
        raise Untraceable(f"{name_of(func)}: gradients are switched on inside the model")
    tape.cut = True
    return func(*plain(args), **plain(kwargs))


def _tape_of(args: Any, kwargs: dict[str, Any]) -> Tape:
    """The tape of the first traced argument; nested arguments are searched only if need be."""
    for a in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(a, Traced):
            return a.tape
    return find_traced(args, kwargs)[0].tape


def find_traced(args: Any, kwargs: dict[str, Any]) -> list[Traced]:
    """Every traced value among the arguments, at any depth of lists and tuples."""
    found: list[Traced] = []
    for a in (*args, *kwargs.values()):
        if isinstance(a, Traced):
            found.append(a)
        elif isinstance(a, (list, tuple)):
            found += find_traced(a, {}) if _any_traced(a, {}) else []
        elif isinstance(a, dict):
            found += find_traced((), a) if _any_traced((), a) else []
    if not found:
        raise Untraceable("a traced value where none was expected")
    return found


def _any_traced(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is traced, at any depth of lists, tuples and dictionaries."""
    return any(
        isinstance(a, Traced)
        or (isinstance(a, (list, tuple)) and _any_traced(a, {}))
        or (isinstance(a, dict) and _any_traced((), a))
        for a in (*args, *kwargs.values())
    )


def plain(value: Any) -> Any:
    """Arguments with every traced value replaced by its tensor."""
    if isinstance(value, Traced):
        return value.p
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(v) for v in value)
    return value


def _without_buffers(args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments with the buffers that are still constant replaced by plain tensors."""

    def replaced(value: Any) -> Any:
        if isinstance(value, Traced):
            return value if value.filled else value.p
        return type(value)(map(replaced, value)) if type(value) in (list, tuple) else value

    return tuple(map(replaced, args)), {k: replaced(v) for k, v in kwargs.items()}


def name_of(func: Any) -> str:
    """The name of a function, for messages."""
    return getattr(func, "__name__", None) or type(func).__name__

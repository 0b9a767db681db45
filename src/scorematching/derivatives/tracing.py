"""Tracing: run a model on a value that remembers how it depends on the points.

A `Traced` value stands for a tensor that depends on x. Every torch operation on it comes here by
``__torch_function__``, is looked up in the tables of `rules`, and is handed to the value's `Tape`
as one of four things: an elementwise function, a linear map, a product, or an operation with a
dense second derivative. What the tape makes of them is its own affair (`pairing`, `sweeps`).

Anything that cannot be followed raises `Untraceable`, and the caller takes another route.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching._checks import can_look
from scorematching.derivatives import composed, rules
from scorematching.derivatives.smoothness import Kink, find_kink, lift_kink

Push = Callable[..., Tensor]
"""A linear map on tangents ``(M, *shape) -> (M, *shape')``."""


class Trailing(partial[Tensor]):
    """A push that leaves leading axes alone, so that it takes one tangent without its axis, too."""


Bend = Callable[[], Tensor]
"""The mean second derivative of an operation along its inputs' tangents, when asked for."""


class Untraceable(Exception):
    """An operation the engine cannot follow; the caller falls back to double backward."""


class Traced:
    """A tensor that depends on the points, on its way through a model.

    Attributes:
        p: its value.
        u: tangents ``(M, *p.shape)``, or broadcastable to that; None on tapes that carry none.
        one: the tangent without its first axis, ``p.shape``, where there is one; None elsewhere.
        s: mean second derivative along the directions, on tapes that carry it.
        tape: what is being recorded.
        axis: the axis of p that runs over the N points (N times c rows in their order, where a
            model has folded other axes into it); None where the model has lost track of it.
        kink: a point where the function that made p is not smooth, if that is still undecided.
        viewed: whether another value may share its memory, so that it cannot change in place.
    """

    __slots__ = ("_one", "_u", "axis", "kink", "p", "s", "tape", "viewed")

    def __init__(
        self,
        p: Tensor,
        t: Tensor | None,
        tape: Tape,
        axis: int | None,
        s: Tensor | None = None,
        one: Tensor | None = None,
    ) -> None:
        self.p, self._u, self.tape, self.axis, self.s = p, t, tape, axis, s
        self._one = one
        self.kink: Kink | None = None
        self.viewed = False

    @property
    def u(self) -> Any:
        """Tangents ``(M, *p.shape)``."""
        if self._u is None and self._one is not None:
            self._u = self._one[None]
        return self._u

    @property
    def one(self) -> Tensor | None:
        """The tangent, where there is one."""
        u = self._u
        if self._one is None and u is not None and len(u) == 1 and u.shape[1:] == self.p.shape:
            self._one = u.squeeze(0)
        return self._one

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(torch.Tensor, name)
        if not callable(attribute):
            if name == "mT" or (name == "T" and self.p.ndim == 2):
                return _dispatch(torch.transpose, (self, -2, -1), {})
            if name == "data" or name not in _VALUES:
                return getattr(self.p, name)
            raise Untraceable(f"{name}: an attribute that holds values")
        return lambda *args, **kwargs: _dispatch(attribute, (self, *args), kwargs)

    def __len__(self) -> int:
        return len(self.p)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        return bool(self.p)

    def __float__(self) -> float:
        return float(self.p)

    def __int__(self) -> int:
        return int(self.p)

    def become(self, value: Traced) -> Traced:
        """Change in place, for every name that this value has."""
        if self.viewed or value.p.shape != self.p.shape:
            raise Untraceable("a change in place that other values may see")
        self.p, self._u, self._one, self.s = value.p, value._u, value._one, value.s
        self.axis, self.kink = value.axis, value.kink
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        raise Untraceable("assignment into a tensor")


_VALUES = frozenset("T H mH real imag grad _base".split())
"""Attributes of a tensor that hold its numbers, not facts about it."""


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Traced, *args: Any) -> Any:
        return _dispatch(getattr(torch.Tensor, name), (self, *args), {})

    return method


def _assignment(name: str) -> Callable[..., Any]:
    def method(self: Traced, other: Any) -> Any:
        return self.become(_dispatch(getattr(torch.Tensor, name), (self, other), {}))

    return method


for _name in (
    "add radd sub rsub mul rmul truediv rtruediv pow rpow neg pos matmul rmatmul abs "
    "getitem gt ge lt le eq ne mod"
).split():
    if hasattr(torch.Tensor, f"__{_name}__"):
        setattr(Traced, f"__{_name}__", _operator(f"__{_name}__"))
for _name in "add sub mul truediv".split():
    setattr(Traced, f"__i{_name}__", _assignment(f"__{_name}__"))


class Tape:
    """What becomes of each operation; one subclass for each use of a trace.

    Every kind of operation says how it acts on tangents and what second derivative it has of its
    own, and ends in `emit`, which is all that most uses define.

    Args:
        num_points: N, the length of the axis that runs over points.
    """

    differentiates = False
    """Whether derivatives of elementwise functions are wanted at all."""

    curves = False
    """Whether second derivatives are wanted as well."""

    closed_forms = True
    """Whether operations with dense second derivatives (softmax) are taken whole or composed."""

    def __init__(self, num_points: int) -> None:
        self.num_points = num_points
        self.recording = torch.is_grad_enabled()
        self.operations: Counter[tuple[str, str]] = Counter()
        self.kinks: list[Kink] = []
        self.random: list[str] = []

    def emit(
        self, inputs: Sequence[Traced], y: Tensor, act: Push, bend: Bend | None, axis: int | None
    ) -> Traced:
        """``y``, made from traced inputs.

        Args:
            inputs: what the operation read.
            y: what it wrote.
            act: the operation's derivative, on tangents of the inputs ``(M, ...)``.
            bend: its mean second derivative along the inputs' tangents; None where that is zero.
            axis: the batch axis of y.
        """
        return Traced(y, None, self, axis)

    def affine(self, x: Traced, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The value of a linear layer at x."""
        return F.linear(x.p, weight, bias)

    def elementwise(
        self, x: Traced, y: Tensor, d1: Any, d2: Any, shortcut: Push | None = None
    ) -> Traced:
        """``y = f(x)`` with first and second derivative d1 and d2.

        ``d2`` is None for zero, or a function that multiplies by it; ``shortcut(y, u, d1 * u)`` is
        ``d2 * u^2``, cheaper where there is one tangent u.
        """
        one, u = x.one, x._u
        read: Any = None
        w: Any = None
        bend: Any = None if d2 is None else lambda: times(d2, mean_square(x.u))
        if one is not None and shortcut is not None:
            read, w = one, d1 * one
            bend = lambda: shortcut(y, one, w)  # noqa: E731
        elif one is None and bend and self.curves and self._is_full(u, y, d1):
            read, (w, square) = u, _Stretch.apply(u, d1)
            bend = lambda: times(d2, square)  # noqa: E731
        act = Trailing(lambda t: w if t is read else d1 * t)
        return self.emit([x], y, act, bend, x.axis)

    @staticmethod
    def _is_full(u: Any, y: Tensor, d1: Any) -> bool:
        """Whether tangents and derivative are tensors of full size."""
        return isinstance(d1, Tensor) and u is not None and u.shape[1:] == y.shape

    def linear(
        self,
        x: Traced,
        y: Tensor,
        push: Push,
        axis: int | None,
        square: Push | None = None,
        shared: bool = False,
    ) -> Traced:
        """``y = A x + b`` with ``push`` applying A, and ``square`` A's squared coefficients.

        ``square`` is None where they are not known. Where A does the same to every point
        (``shared``), so it may to tangents that are the same for all, and they stay small.
        """
        return self.emit([x], y, push if shared else on_full(push, x), None, axis)

    def add(self, a: Traced, b: Traced, y: Tensor, scale: float, axis: int | None) -> Traced:
        """``y = a + scale * b`` with broadcasting."""

        def act(u: Tensor, w: Tensor) -> Tensor:
            return torch.add(lift(u, y.ndim), lift(w, y.ndim), alpha=scale)

        return self.emit([a, b], y, act, None, axis)

    def product(self, a: Traced, b: Traced, y: Tensor, push: Push, axis: int | None) -> Traced:
        """``y = B(a, b)``, bilinear, with ``push(u, w)`` applying B to tangents or values."""

        def ready(u: Any, x: Traced) -> Tensor:
            return lift(widen(u, x.p), y.ndim)

        def act(u: Tensor, w: Tensor) -> Tensor:
            return push(ready(u, a), b.p) + push(a.p, ready(w, b))

        return self.emit(
            [a, b], y, act, lambda: 2 * push(ready(a.u, a), ready(b.u, b)).mean(0), axis
        )

    def join(self, parts: Sequence[Any], y: Tensor, dim: int, axis: int | None) -> Traced:
        """``y = cat(parts, dim)``, some of them constant."""
        traced = [p for p in parts if isinstance(p, Traced)]

        def act(*tangents: Tensor) -> Tensor:
            left, num = list(tangents), tangents[0].shape[0]
            pieces = [
                widen(left.pop(0), p.p)
                if isinstance(p, Traced)
                else p.new_zeros(()).expand(num, *p.shape)
                for p in parts
            ]
            return torch.cat(pieces, dim + 1)

        return self.emit(traced, y, act, None, axis)

    def dense(self, x: Traced, y: Tensor, push: Push, bend: Push, axis: int | None) -> Traced:
        """``y = phi(x)`` with ``push(u) = phi'[u]`` and ``bend(u) = phi''[u, u]``."""
        return self.emit(
            [x],
            y,
            lambda u: push(widen(u, x.p)),
            lambda: bend(widen(x.u, x.p)).mean(0),
            axis,
        )

    def generic(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Traced:
        """An operation in no table."""
        y = func(*plain(args), **plain(kwargs))
        if not isinstance(y, Tensor):
            raise Untraceable(f"{name_of(func)}: more than one result")
        return self.emit(find_traced(args, kwargs), y, plain, None, None)


def widen(t: Any, p: Tensor) -> Tensor:
    """Tangents at their full size ``(M, *p.shape)``."""
    return t if t.shape[1:] == p.shape else t.expand(t.shape[0], *p.shape)


def on_full(push: Push, x: Traced) -> Push:
    """A map on tangents of x, given them at their full size."""
    return lambda t: push(widen(t, x.p))


def lift(t: Tensor, ndim: int) -> Tensor:
    """Tangents of a value that is about to be broadcast to ``ndim`` axes."""
    missing = ndim + 1 - t.ndim
    return t.reshape(t.shape[0], *[1] * missing, *t.shape[1:]) if missing > 0 else t


def times(d2: Any, q: Tensor) -> Any:
    """``d2 * q``, for a second derivative that may be a function that multiplies by it."""
    return d2(q) if callable(d2) else d2 * q


def mean_square(t: Any) -> Tensor:
    """``mean_j u_j^2`` over tangents ``(M, *shape)``."""
    return _MeanSquare.apply(t) if t.shape[0] > 1 else t.squeeze(0).square()


class _MeanSquare(torch.autograd.Function):
    """A mean of squares whose backward pass goes over the tangents once instead of four times."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return inner_of_tangents(t, t) / t.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return t * (grads[0] * (2 / t.shape[0]))


class _Stretch(torch.autograd.Function):
    """Tangents times a derivative, ``d u_j``, and ``mean_j u_j^2``.

    Tangents are the largest numbers of a step, so time goes by how often they are read and, worse,
    written anew. By itself autograd would write them three times more than here.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(u, d)
        return d * u, inner_of_tangents(u, u) / u.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        (u, d), (g, g_square) = ctx.saved_tensors, grads
        share = None if g_square is None else g_square * (2 / u.shape[0])
        if g is None:  # what leads to the model's output alone, which not every loss asks for
            return None if share is None else u * share, None
        back = g * d
        return back if share is None else back.addcmul_(u, share), inner_of_tangents(g, u)


def inner_of_tangents(u: Tensor, w: Tensor) -> Tensor:
    """``sum_j u_j w_j`` over tangents, ``(M, *shape), (M, *shape) -> shape``."""
    if u.is_cuda or not can_look(u):
        return (u * w).sum(0)
    left = u.unbind(0)
    right = left if w is u else w.unbind(0)
    total = left[0] * right[0]
    for a, b in zip(left[1:], right[1:]):
        total.addcmul_(a, b)
    return total


# ------------------------------------------------------------------------------- dispatch


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Apply one torch operation to arguments of which at least one is traced."""
    name = name_of(func)
    traced = find_traced(args, kwargs)
    tape = traced[0].tape
    if torch.is_grad_enabled() != tape.recording:  # inside no_grad, or a custom autograd function
        raise Untraceable(f"{name}: called where gradients are switched off")
    shape_only = name in rules.SHAPE_OF and not isinstance(args[0], Traced)
    if name in rules.CONSTANT or shape_only:
        return func(*plain(args), **plain(kwargs))
    kink = _follow_kinks(tape, name, traced, args, kwargs)
    in_place, args, kwargs = _out_of_place(name, args, kwargs)
    route, rule = route_and_rule(name)
    tape.operations[name, route] += 1
    y = rule(tape, func, *args, **kwargs)
    if kink and isinstance(y, Traced):
        y.kink = kink
    return traced[0].become(y) if in_place else y


def _follow_kinks(
    tape: Tape, name: str, traced: list[Traced], args: Any, kwargs: dict[str, Any]
) -> Kink | None:
    """The kink that an operation's result has, undecided yet; those that are decided are noted."""
    kinked = [x for x in traced if x.kink]
    kink = find_kink(name.rstrip("_") if not name.endswith("__") else name, args, kwargs)
    if not (kinked or kink):
        return None
    lifted = lift_kink(name, args, kinked)
    tape.kinks += [x.kink for x in kinked if x.kink and not lifted]
    if kink and (_writes(name, kwargs) or name in _SEVERAL):
        tape.kinks.append(kink)  # nothing will carry it on
    return lifted or kink


@lru_cache(maxsize=1024)
def name_of(func: Any) -> str:
    """The name of an operation in the tables of `rules`."""
    name = getattr(func, "__name__", str(func))
    return rules.ALIASES.get(name, name)


def find_traced(args: Any, kwargs: Any) -> list[Traced]:
    """Every traced value among the arguments, one level of lists deep."""
    found: list[Traced] = []
    for a in (*args, *kwargs.values()):
        if isinstance(a, Traced):
            found.append(a)
        elif isinstance(a, (list, tuple)):
            found += [b for b in a if isinstance(b, Traced)]
    if not found:
        raise Untraceable("a traced value in a place where none was expected")
    return found


def plain(value: Any) -> Any:
    """Arguments with every traced value replaced by its tensor."""
    if isinstance(value, Traced):
        return value.p
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(v) for v in value)
    return value


def _out_of_place(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[bool, Any, dict[str, Any]]:
    """Whether a call asks for ``inplace=True``, and the call without it."""
    if _writes(name, kwargs):
        raise Untraceable(f"{name}: writes in place")
    in_place = bool(kwargs.get("inplace"))
    if kwargs:
        kwargs = {k: v for k, v in kwargs.items() if k not in ("out", "inplace")}
    if len(args) > _INPLACE.get(name, len(args)) and args[-1] is True:
        in_place, args = True, (*args[:-1], False)
    return in_place, args, kwargs


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or kwargs.get("out") is not None


_SEVERAL = frozenset("max min sort topk median rrelu huber_loss".split())

_INPLACE = {
    "relu": 1, "relu6": 1, "leaky_relu": 2, "elu": 2, "celu": 2, "selu": 1, "hardtanh": 3,
    "hardswish": 1, "hardsigmoid": 1, "silu": 1, "mish": 1, "dropout": 3, "dropout2d": 3,
    "dropout3d": 3,
}  # fmt: skip
"""The position of the argument ``inplace``."""


RULES: dict[str, Callable[..., Any]] = {}
"""Operations with a shape of their own: ``rule(tape, func, *args, **kwargs)``; see `structural`."""


def route_and_rule(name: str) -> tuple[str, Callable[..., Any]]:
    """The route of an operation, as `explain` prints it, and its rule."""
    for route, names, kind in (
        ("rule", RULES, name),
        ("rule", rules.ELEMENTWISE, "elementwise"),
        ("linear", rules.RESHAPES, "reshape"),
        ("linear", rules.PERMUTES, "permute"),
        ("linear", rules.BATCHED, "batched"),
        ("linear", rules.LINEAR, "linear map"),
        ("composed", composed.BY_NAME, "composed"),
    ):
        if name in names:
            return route, RULES[kind]
    return "nested jvp", RULES["generic"]

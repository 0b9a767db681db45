"""Tapes: what is done with each operation of a traced model.

Every use of a trace is a `Tape`. Rules describe an operation by its value, its action on tangents
and its own second derivative; all of them end in `Tape.emit`, which most uses override alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching.derivatives.engine import decomposition
from scorematching.derivatives.engine.stretch import Stretch, mean_square
from scorematching.derivatives.engine.trace import Traced, Untraceable, find_traced, name_of, plain

Push = Callable[..., Tensor]
"""A linear map on tangents ``(M, *shape) -> (M, *shape')``."""

Second = Callable[[], Tensor] | None
"""Computes the mean second derivative of an operation along its inputs' tangents; None for zero."""

Inputs = Sequence[Traced]
"""What an operation reads."""

Axis = int | None
"""The axis of a value that runs over the points; None where it is not known."""


class Trailing(partial[Tensor]):
    """A push that acts on trailing axes only, so it also takes one tangent without its axis."""


ONES = object()
"""Coefficients that are zeros and ones, their own squares."""


class Tape:
    """Receives the operations of a model; one subclass for each use of a trace.

    Args:
        num_points: N, the length of the axis that runs over points.
        graphs: decompositions of operations without a rule, kept from one trace to the next.

    Attributes:
        recording: whether autograd records at the start of the trace.
        met: the operations so far, by name and kind.
        cut: whether the model evaluated something under ``no_grad``.
        has_buffers: whether the model allocated tensors that it may fill.
    """

    differentiates = False
    """Whether first derivatives of elementwise functions are needed."""

    curves = False
    """Whether second derivatives are needed as well."""

    closed_forms = True
    """Whether operations with dense second derivatives (softmax) are taken whole or composed."""

    def __init__(self, num_points: int, graphs: dict[Any, Any] | None = None) -> None:
        self.num_points = num_points
        self.graphs: dict[Any, Any] = {} if graphs is None else graphs
        self.recording = torch.is_grad_enabled()
        self.met: list[tuple[str, str]] = []
        self.cut = self.has_buffers = False

    def emit(self, inputs: Inputs, y: Tensor, push: Push, second: Second, axis: Axis) -> Traced:
        """Record ``y``, computed from traced inputs, and return it traced.

        Args:
            inputs: what the operation read.
            y: what it returned.
            push: the operation's derivative, on tangents of the inputs ``(M, ...)``.
            second: its mean second derivative along the inputs' tangents; None where it is zero.
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

        Either may be a function that multiplies by it, and ``d2`` None for zero;
        ``shortcut(y, u, d1 * u)`` is ``d2 * u^2``, cheaper where there is one tangent u.
        """
        single, u = x.single, x._u
        read: Any = None
        w: Any = None
        second: Any = None if d2 is None else lambda: times(d2, mean_square(x.u))
        if single is not None and shortcut is not None:
            read, w = single, d1 * single
            second = lambda: shortcut(y, single, w)  # noqa: E731
        elif single is None and second and self.curves and _is_full(u, y, d1):
            read, (w, square) = u, Stretch.apply(u, d1)
            second = lambda: times(d2, square)  # noqa: E731
        push = Trailing(lambda t: w if t is read else times(d1, t))
        return self.emit([x], y, push, second, x.axis)

    def linear(
        self, x: Traced, y: Tensor, push: Push, axis: Axis, scales: Any = None, shared: bool = False
    ) -> Traced:
        """``y = A x + b`` with ``push`` applying A.

        Where A acts on every point alike (``shared``), tangents that are the same for all points
        stay unexpanded. ``scales`` are the coefficients of A, for tapes that use others in their
        place by ``push(t, scales)``: `ONES` where they are all zero or one, None where they are
        not known.
        """
        return self.emit([x], y, push if shared else on_full(push, x), None, axis)

    def add(self, a: Traced, b: Traced, y: Tensor, scale: float, axis: Axis) -> Traced:
        """``y = a + scale * b`` with broadcasting."""

        def push(u: Tensor, w: Tensor) -> Tensor:
            return torch.add(lift(u, y.ndim), lift(w, y.ndim), alpha=scale)

        return self.emit([a, b], y, push, None, axis)

    def product(self, a: Traced, b: Traced, y: Tensor, form: Push, axis: Axis) -> Traced:
        """``y = B(a, b)``, bilinear, with ``form(u, w)`` applying B to tangents or values."""

        def ready(u: Any, x: Traced) -> Tensor:
            return lift(widen(u, x.p), y.ndim)

        def push(u: Tensor, w: Tensor) -> Tensor:
            return form(ready(u, a), b.p) + form(a.p, ready(w, b))

        second = lambda: 2 * mean(form(ready(a.u, a), ready(b.u, b)))  # noqa: E731
        return self.emit([a, b], y, push, second, axis)

    def join(self, parts: Sequence[Any], y: Tensor, dim: int, axis: Axis) -> Traced:
        """``y = cat(parts, dim)``, some of them constant."""
        traced = [p for p in parts if isinstance(p, Traced)]

        def push(*tangents: Tensor) -> Tensor:
            left, num = list(tangents), tangents[0].shape[0]
            pieces = [
                widen(left.pop(0), p.p)
                if isinstance(p, Traced)
                else y.new_zeros(()).expand(num, *p.shape)
                for p in parts
            ]
            return torch.cat(pieces, dim + 1)

        return self.emit(traced, y, push, None, axis)

    def dense(self, x: Traced, y: Tensor, push: Push, second: Push, axis: Axis) -> Traced:
        """``y = phi(x)`` with ``push(u) = phi'[u]`` and ``second(u) = phi''[u, u]``."""
        mean_second = lambda: mean(second(widen(x.u, x.p)))  # noqa: E731
        return self.emit([x], y, on_full(push, x), mean_second, axis)

    def unknown(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """An operation without a rule for these arguments: decomposed, or `opaque`."""
        graph = decomposition.decompose(func, args, kwargs, self.graphs)
        if graph is None:
            return self.opaque(func, args, kwargs)
        self.met.append((name_of(func), "decomposed"))
        result = graph(args, kwargs)
        lost = isinstance(result, Tensor) and not isinstance(result, Traced)
        if lost and result.is_floating_point():
            raise Untraceable(f"{name_of(func)}: its result was not traced")
        return result

    def opaque(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """An operation that has no rule and cannot be decomposed."""
        y = func(*plain(args), **plain(kwargs))
        if not isinstance(y, Tensor):
            raise Untraceable(f"{name_of(func)}: no rule for it")
        self.met.append((name_of(func), "no rule"))
        return self.emit(find_traced(args, kwargs), y, plain, None, None)


@contextmanager
def without_warnings() -> Iterator[None]:
    """A region without the warnings that torch's forward mode and vmap give about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def _is_full(u: Any, y: Tensor, d1: Any) -> bool:
    """Whether tangents and derivative are real tensors of full size."""
    full = isinstance(d1, Tensor) and u is not None and u.shape[1:] == y.shape
    return full and not y.is_complex()


def widen(t: Any, p: Tensor) -> Tensor:
    """Tangents at their full size ``(M, *p.shape)``."""
    return t if t.shape[1:] == p.shape else t.expand(t.shape[0], *p.shape)


def on_full(push: Push, x: Traced) -> Push:
    """A map on tangents of x, given them at their full size."""
    return lambda t: push(widen(t, x.p))


def lift(t: Tensor, ndim: int) -> Tensor:
    """Tangents with new axes after the first, to broadcast like a value with ``ndim`` axes."""
    missing = ndim + 1 - t.ndim
    return t.reshape(t.shape[0], *[1] * missing, *t.shape[1:]) if missing > 0 else t


def constant_like(value: Any, like: Tensor) -> Tensor:
    """A number as a tensor with the dtype and device of another; a tensor is converted.

    The number is written on the device itself: a CUDA graph must not hold copies from the CPU.
    """
    if isinstance(value, Tensor):
        return value.to(like)
    return torch.full((), value, dtype=like.dtype, device=like.device)


def times(d2: Any, q: Tensor) -> Any:
    """``d2 * q``, for a derivative that may be a function that multiplies by it."""
    return d2(q) if callable(d2) else d2 * q


def mean(t: Tensor) -> Tensor:
    """The mean over tangents ``(M, *shape)``, without a copy where there is one."""
    return t.mean(0) if t.shape[0] > 1 else t.squeeze(0)

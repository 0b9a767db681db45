"""Activation functions whose derivatives are computed again in backward passes, not kept.

Autograd keeps every intermediate result of the formula of a derivative, five or ten tensors of the
size of a layer. Here ``f^(k)(z) q`` is one operation that keeps z and q, and its derivatives in z
and in q are operations of the same kind:

    ``d/dq (f^(k)(z) q) [g] = f^(k)(z) g``,    ``d/dz (f^(k)(z) q) [g] = f^(k+1)(z) (q g)``

Tangents are ``f'(z) u``, adjoints ``f'(z) g``, second derivatives ``f''(z) u^2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching.derivatives.engine.stretch import inner_of_tangents
from scorematching.derivatives.engine.tape import Push


class Derivatives(NamedTuple):
    """The derivatives of a function f.

    Attributes:
        orders: ``(z, k) -> f^(k)(z)`` for k = 1, 2, 3, in operations that autograd follows.
        slope: ``(q, z) -> f'(z) q`` in one kernel, for q of the shape of z.
    """

    orders: Callable[[Tensor, int], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def apply(f: Derivatives, z: Tensor, y: Tensor) -> tuple[Tensor, Push, Push]:
    """``y = f(z)`` with its graph, and the multiplications by f'(z) and f''(z)."""
    linked = _Value.apply(f, z, y) if torch.is_grad_enabled() else y
    return linked, partial(multiply, f, 1, z), partial(multiply, f, 2, z)


def multiply(f: Derivatives, order: int, z: Tensor, q: Tensor) -> Tensor:
    """``f^(k)(z) q``, for q of the shape of z or with tangents along a further first axis."""
    if order > 2:  # in the last backward pass, where nothing is kept
        return f.orders(z, order) * q
    result: Tensor = _Multiply.apply(f, order, z, q)
    return result


class _Value(torch.autograd.Function):
    """``y = f(z)``, given y."""

    @staticmethod
    def forward(ctx: Any, f: Derivatives, z: Tensor, y: Tensor) -> Tensor:
        ctx.f = f
        ctx.save_for_backward(z)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        return None, multiply(ctx.f, 1, z, grads[0]), None


class _Multiply(torch.autograd.Function):
    """``f^(k)(z) q``."""

    @staticmethod
    def forward(ctx: Any, f: Derivatives, order: int, z: Tensor, q: Tensor) -> Tensor:
        ctx.f, ctx.order = f, order
        ctx.save_for_backward(z, q)
        if order > 1:
            return f.orders(z, order) * q
        return f.slope(q, z) if q.shape == z.shape else f.slope(torch.ones_like(z), z) * q

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (z, q), (g,) = ctx.saved_tensors, grads
        in_z = in_q = None
        if ctx.needs_input_grad[2]:
            both = inner_of_tangents(q, g) if g.ndim > z.ndim else q * g
            in_z = multiply(ctx.f, ctx.order + 1, z, both)
        if ctx.needs_input_grad[3]:
            in_q = multiply(ctx.f, ctx.order, z, g).sum_to_size(q.shape)
        return None, None, in_z, in_q


def silu(z: Tensor, order: int) -> Tensor:
    """Derivatives of ``z s`` with ``s = sigmoid(z)``."""
    s = torch.sigmoid(z)
    if order == 1:
        return s + _sigmoid_slope(z, s)
    odd = torch.rsub(s, 1, alpha=2)
    if order == 2:
        return _sigmoid_slope(2 + z * odd, s)
    return _sigmoid_slope(3 * odd + z * (1.5 * odd * odd - 0.5), s)


_sigmoid_slope = torch.ops.aten.sigmoid_backward.default
"""``(q, s) -> q s (1 - s)`` in one kernel."""

_tanh_slope = torch.ops.aten.tanh_backward.default
"""``(q, t) -> q (1 - t^2)`` in one kernel."""


def gelu(z: Tensor, order: int, approximate: str = "none") -> Tensor:
    """Derivatives of ``z Phi(z)``, exact or by tanh."""
    if approximate != "none":
        return _gelu_by_tanh(z, order)
    square = z * z
    density = torch.exp(-0.5 * square) / math.sqrt(2 * math.pi)
    if order == 1:
        return 0.5 * torch.erfc(-z / math.sqrt(2)) + z * density
    return (2 - square) * density if order == 2 else z * (square - 4) * density


def _gelu_by_tanh(z: Tensor, order: int) -> Tensor:
    """Derivatives of ``z (1 + t) / 2`` with ``t = tanh(w)``, ``w = a (z + b z^3)``."""
    a, b = math.sqrt(2 / math.pi), 0.044715
    constant = torch.full((), a, dtype=z.dtype, device=z.device)
    inside, w1, w1_and_w2 = (  # w / z, w' and w' + z w'' / 2
        torch.addcmul(constant, z, z, value=k * a * b) for k in (1, 3, 6)
    )
    t = torch.tanh(z * inside)
    if order == 1:
        return 0.5 * (1 + t + z * _tanh_slope(w1, t))
    square, w2 = w1 * w1, 6 * a * b * z
    if order == 2:
        return _tanh_slope(torch.addcmul(w1_and_w2, z * t, square, value=-1), t)
    t2 = w2 - 2 * t * square
    t3 = 6 * a * b - 6 * t * w1 * w2 + (6 * t * t - 2) * w1 * square
    return _tanh_slope(1.5 * t2 + 0.5 * z * t3, t)


def of_silu(inplace: bool = False) -> Derivatives:
    """Derivatives of `torch.nn.functional.silu`, by its arguments."""
    return Derivatives(silu, torch.ops.aten.silu_backward.default)


def of_gelu(approximate: str = "none") -> Derivatives:
    """Derivatives of `torch.nn.functional.gelu`, by its arguments."""
    slope = partial(torch.ops.aten.gelu_backward.default, approximate=approximate)
    return Derivatives(partial(gelu, approximate=approximate), slope)

"""Normalisation over rows, in closed form.

For a row x of n numbers with mean m and ``r = (variance + eps)^(-1/2)`` let ``z = r (x - m)``. Its
derivative along u is a symmetric matrix times u, which depends on x through z and r alone:

    ``P u = r (u - mean(u) - z mean(z u))``,    ``dr = -r^2 mean(z u)``

and its second derivative, with ``t = P u``, is ``-r (2 mean(z u) t + mean(t u) z)``. Tangents,
adjoints and their derivatives are all made of P, which torch has as one kernel, the backward pass
of layer normalisation. Autograd alone keeps every term of these formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values
from scorematching._tracing import is_batched
from scorematching.derivatives.engine.tape import mean
from scorematching.derivatives.engine.trace import Call, Traced
from scorematching.derivatives.ops import compositions
from scorematching.derivatives.ops.registry import structural

FUSED_TANGENTS = 4
"""Tangents for which torch's kernel is called once each, on a CPU; more are projected at once."""


@structural("layer_norm")
def layer_norm(
    call: Call,
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    """Rows are the last axes."""
    start = input.ndim - len(normalized_shape)
    if not _closed(call, input, weight, bias) or (input.axis or 0) >= start:
        return compositions.layer_norm(input, normalized_shape, weight, bias, eps)
    rows = input.shape[start:].numel()
    return _affine(call, _standardise(call, input, rows, eps), weight, bias)


@structural("group_norm")
def group_norm(
    call: Call,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Rows are groups of channels with all that follows them."""
    if not _closed(call, input, weight, bias) or input.axis != 0:
        return compositions.group_norm(input, num_groups, weight, bias, eps)
    rows = input.shape[1:].numel() // num_groups
    column = (-1,) + (1,) * (input.ndim - 2)
    weight, bias = (None if w is None else w.reshape(column) for w in (weight, bias))
    return _affine(call, _standardise(call, input, rows, eps), weight, bias)


def _closed(call: Call, x: Any, weight: Any, bias: Any) -> bool:
    """Whether the closed form applies; mixed precision and traced weights are written out."""
    plain = isinstance(x, Traced) and not isinstance(weight, Traced)
    plain = plain and not isinstance(bias, Traced) and call.tape.closed_forms
    return plain and x.dtype in (torch.float32, torch.float64) and x.numel() > 0


def _standardise(call: Call, x: Traced, length: int, eps: float) -> Traced:
    """Mean zero and variance one over rows of the given length, up to eps."""
    z, r = _Standardise.apply(x.p.reshape(-1, length), eps)
    cache: dict[int, tuple[Tensor, Tensor]] = {}

    def rows(u: Tensor) -> Tensor:
        return u.reshape(len(u), -1, length)

    def push(u: Tensor) -> Tensor:
        if id(u) not in cache:
            cache[id(u)] = u, project(z, r, rows(u))
        return cache[id(u)][1].reshape(u.shape)

    def second(u: Tensor) -> Tensor:
        t, u = rows(push(u)), rows(u)
        of_z, of_t = ((a * u).mean(-1, keepdim=True) for a in (z, t))
        curved = mean(t * (-2 * r * of_z)) + z * mean(-r * of_t)
        return curved.reshape(1, *x.p.shape)

    return call.tape.dense(x, z.reshape(x.p.shape), push, second, x.axis)


def _affine(call: Call, x: Traced, weight: Tensor | None, bias: Tensor | None) -> Any:
    """``x * weight + bias`` as one operation; both are constant and broadcast to x."""
    if weight is None:
        return x if bias is None else x + bias
    y = x.p * weight if bias is None else torch.addcmul(bias, x.p, weight)
    return call.tape.linear(x, y, lambda t, c=weight: t * c, x.axis, weight, shared=True)


def project(z: Tensor, r: Tensor, u: Tensor) -> Tensor:
    """``P u`` for rows ``z: (R, n)``, ``r: (R, 1)``, and ``u: (M, R, n)`` or ``(R, n)``."""
    result: Tensor = _Project.apply(z, r, u)
    return result


class _Standardise(torch.autograd.Function):
    """Rows ``x: (R, n)`` to ``z: (R, n)`` and ``r: (R, 1)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        z, _, r = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        ctx.save_for_backward(z, r)
        return z, r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (z, r), (in_z, in_r) = ctx.saved_tensors, grads
        back = None if in_z is None else project(z, r, in_z)
        if in_r is not None:
            share = in_r * r * r * (-1 / z.shape[-1])
            back = share * z if back is None else torch.addcmul(back, share, z)
        return back, None


class _Project(torch.autograd.Function):
    """``P u``, with P symmetric."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, r: Tensor, u: Tensor) -> Tensor:
        t = _projected(z, r, u)
        ctx.save_for_backward(z, r, u, t)
        return t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (z, r, u, t), (g,) = ctx.saved_tensors, grads
        in_z = in_r = in_u = None
        if ctx.needs_input_grad[2]:
            in_u = project(z, r, g)
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            of_u, of_g = (-r * (z * a).mean(-1, keepdim=True) for a in (u, g))
            in_z = torch.addcmul(of_u * g, of_g, u)
            in_r = (t * g).sum(-1, keepdim=True) / r
            if u.ndim > z.ndim:
                in_z, in_r = in_z.sum(0), in_r.sum(0)
        return in_z, in_r, in_u


def _projected(z: Tensor, r: Tensor, u: Tensor) -> Tensor:
    """``P u``, for one or several u."""
    if u.ndim == z.ndim:
        return _unscaled(z, r, u).mul_(r)
    if len(u) == 1:
        return _unscaled(z, r, u[0]).mul_(r)[None]
    if len(u) <= FUSED_TANGENTS and not u.is_cuda and can_read_values(u) and not is_batched(u):
        t = torch.empty_like(u)
        for part, place in zip(u, t):
            torch.mul(_unscaled(z, r, part), r, out=place)
        return t
    inner = (z * u).mean(-1, keepdim=True)
    return r * torch.addcmul(u - u.mean(-1, keepdim=True), z, inner, value=-1)


def _unscaled(z: Tensor, r: Tensor, u: Tensor) -> Tensor:
    """``P u / r`` by torch's backward pass of layer normalisation, at mean zero and r = 1."""
    zeros, ones = torch.zeros_like(r), torch.ones_like(r)
    kernel = torch.ops.aten.native_layer_norm_backward.default
    back: Tensor = kernel(
        u.contiguous(), z, z.shape[-1:], zeros, ones, None, None, [True, False, False]
    )[0]
    return back

"""Running sums of exponentials, ``y_k = log sum_{j <= k} exp(x_j)``.

With ``a_k = exp(y_{k-1} - y_k)`` and ``b_k = exp(x_k - y_k) = 1 - a_k``, the derivative along u is
the running mean ``m_k = a_k m_{k-1} + b_k u_k``, and the second one the running variance
``V_k = a_k V_{k-1} + a_k b_k (u_k - m_{k-1})^2``. Both, and the adjoint of y, are one recurrence,
`accumulate`, whose terms do not cancel and which is its own derivative. Sums of powers under one
maximum for the whole row would lose terms far below it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching.derivatives.engine.stretch import mean_square
from scorematching.derivatives.engine.trace import Call, NoRule, Traced
from scorematching.derivatives.ops.registry import structural


@structural("logcumsumexp")
def logcumsumexp(call: Call, input: Any, dim: int) -> Any:
    """Running sums of exponentials, with a closed second derivative."""
    if input.ndim == 0 or not call.tape.closed_forms:
        return sums_of_pairs(input, dim)
    return _running(call, input.movedim(dim, -1)).movedim(-1, dim)


def _running(call: Call, x: Traced) -> Any:
    """Along the last axis."""
    levels: list[Tensor] = []
    y: Tensor = _LogCumSumExp.apply(x.p, levels)
    a, b = _shares(x.p, y)
    known: dict[int, tuple[Tensor, Tensor]] = {}

    def first(u: Tensor) -> Tensor:
        if id(u) not in known:
            known[id(u)] = u, accumulate(a, b * u, levels)
        return known[id(u)][1]

    def second(u: Tensor) -> Tensor:
        square = mean_square(u - _later(first(u)))
        return accumulate(a, a * b * square, levels)[None]

    axis = None if x.axis == x.p.ndim - 1 else x.axis
    return call.tape.dense(x, y, first, second, axis)


class _LogCumSumExp(torch.autograd.Function):
    """Along the last axis; fills a list with the products that `accumulate` needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, levels: list[Tensor]) -> Tensor:
        y = torch.logcumsumexp(x, -1)
        levels += _levels(_shares(x, y)[0])
        ctx.save_for_backward(x, y)
        ctx.levels = levels
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b = _shares(*ctx.saved_tensors)
        return b * accumulate(a, grads[0], ctx.levels, back=True), None


def _shares(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What the sum before and the new term contribute to every sum, ``a`` and ``b = 1 - a``.

    Terms of minus infinity contribute nothing, before the first other one, too.
    """
    before = torch.cat([torch.full_like(y[..., :1], -torch.inf), y[..., :-1]], -1)
    lead = torch.masked_fill(x - before, y == -torch.inf, -torch.inf)
    return torch.sigmoid(-lead), torch.sigmoid(lead)


def accumulate(a: Tensor, c: Tensor, levels: list[Tensor], back: bool = False) -> Tensor:
    """``z_k = a_k z_{k-1} + c_k`` along the last axis, or ``z_k = a_{k+1} z_{k+1} + c_k``.

    ``a: shape``, ``c: shape`` or ``(M, *shape)``; see `_levels` for the products of a.
    """
    result: Tensor = _Accumulate.apply(a, c, levels, back)
    return result


class _Accumulate(torch.autograd.Function):
    """In log2(length) steps, each of which joins sums of neighbours."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, levels: list[Tensor], back: bool) -> Tensor:
        z, ends = c, list(enumerate(levels))
        for k, level in ends:
            z = _join_back(z, level, 1 << k) if back else _join(z, level, 1 << k)
        ctx.save_for_backward(a, z)
        ctx.levels, ctx.back = levels, back
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, z = ctx.saved_tensors
        adjoint = accumulate(a, grads[0], ctx.levels, not ctx.back)
        of_a = _later(adjoint) * z if ctx.back else adjoint * _later(z)
        return of_a.sum_to_size(a.shape), adjoint, None, None


def _levels(a: Tensor) -> list[Tensor]:
    """Products of 1, 2, 4, 8 ... neighbours: that number k holds those that end at ``2^k`` ..."""
    levels, step = [], 1
    level = a[..., 1:]
    while step < a.shape[-1]:
        levels.append(level)
        level = level[..., step:] * level[..., :-step]
        step *= 2
    return levels


def _join(z: Tensor, level: Tensor, step: int) -> Tensor:
    """Add to every sum the one that ends ``step`` places before."""
    return torch.cat([z[..., :step], torch.addcmul(z[..., step:], level, z[..., :-step])], -1)


def _join_back(z: Tensor, level: Tensor, step: int) -> Tensor:
    """Add to every sum the one that begins ``step`` places behind."""
    return torch.cat([torch.addcmul(z[..., :-step], level, z[..., step:]), z[..., -step:]], -1)


def _later(z: Tensor) -> Tensor:
    """The value at the place before, zero at the first place."""
    return torch.cat([torch.zeros_like(z[..., :1]), z[..., :-1]], -1)


def sums_of_pairs(input: Tensor, dim: int) -> Tensor:
    """`torch.logcumsumexp`, in log2(length) sums of two terms.

    With one maximum for the whole axis, terms far below it would be lost. The sum of two terms of
    minus infinity has no derivative, so that these are replaced by the least number.
    """
    if input.ndim == 0:
        raise NoRule
    least = torch.finfo(input.dtype).min
    y, step = torch.masked_fill(input, input == -torch.inf, least).movedim(dim, 0), 1
    while step < y.shape[0]:
        sums = torch.logsumexp(torch.stack([y[step:], y[:-step]]), 0)
        y = torch.cat([y[:step], sums])
        step *= 2
    return torch.masked_fill(y, y == least, -torch.inf).movedim(0, dim)

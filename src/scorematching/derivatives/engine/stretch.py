"""Tangents times a derivative, and sums over tangents.

Tangents are the largest tensors of a step, so its time depends on how often they are read and
written. On a GPU one Triton kernel reads them once for the product and for the sum; plain
operations read them three times and write the squares, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching._tracing import is_recording, is_tracing
from scorematching._triton import is_available, program

tl: Any = None  # triton.language, set by `_triton.program`

BLOCK = 512
"""Numbers of each tangent that one program of the kernel reads."""

PROGRAMS = 2048
"""How many programs fill a GPU: those of a block share the tangents."""

LEAST = 1 << 22
"""Numbers from which on the kernel is used: it takes longer to launch than plain operations."""

FEW = 1 << 13
"""Numbers of a tangent below which a call takes longer than its arithmetic on a CPU."""


class Stretch(torch.autograd.Function):
    """Tangents times a derivative, ``d u_j``, and ``mean_j u_j^2``.

    ``(M, *shape), shape -> (M, *shape), shape``. Autograd alone would write tangents three times
    more.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """The product and the mean square."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(u, d)
        if _takes_kernel(u, d):
            stretched, total = _stretch(u, u, d, d)
            return stretched, total / u.shape[0]
        return d * u, inner_of_tangents(u, u) / u.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The kernel is not differentiable, so second derivatives take plain operations."""
        (u, d), (g, g_square) = ctx.saved_tensors, grads
        share = 2 / u.shape[0]
        if g is None:  # the tangent leads only to the model's output, which this loss ignores
            return None if g_square is None else u * (g_square * share), None
        if g_square is not None and not torch.is_grad_enabled() and _takes_kernel(g, d):
            return _stretch(g, u, d, g_square * share)
        back = g * d
        if g_square is not None:
            back.addcmul_(u, g_square, value=share)
        return back, inner_of_tangents(g, u)


def mean_square(t: Any) -> Tensor:
    """``mean_j u_j^2`` over tangents ``(M, *shape)``."""
    if t.is_complex():
        return t.square().mean(0)
    return _MeanSquare.apply(t) if t.shape[0] > 1 else t.squeeze(0).square()


class _MeanSquare(torch.autograd.Function):
    """A mean of squares whose backward pass reads the tangents once instead of four times."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return inner_of_tangents(t, t) / t.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return t * (grads[0] * (2 / t.shape[0]))


def inner_of_tangents(u: Tensor, w: Tensor) -> Tensor:
    """``sum_j u_j w_j`` over tangents, ``(M, *shape), (M, *shape) -> shape``."""
    if u.is_cuda or is_recording(u) or u.numel() < FEW * u.shape[0]:
        return (u * w).sum(0)
    left = u.unbind(0)
    right = left if w is u else w.unbind(0)
    total = left[0] * right[0]
    for a, b in zip(left[1:], right[1:]):
        total.addcmul_(a, b)
    return total


def _takes_kernel(u: Tensor, d: Tensor) -> bool:
    """Whether the kernel can take these tangents and derivative, and is worth its launch."""
    if not u.is_cuda or u.numel() < LEAST or is_tracing() or not is_available():
        return False
    return u.dtype in (torch.float32, torch.float64) and u.dtype == d.dtype


def _stretch(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``a x_j + b y_j`` and ``sum_j x_j y_j``; ``a x_j`` without b where x is y.

    Args:
        x: tangents ``(M, *shape)``.
        y: other tangents, or x.
        a: ``shape``.
        b: ``shape``.
    """
    same = y is x
    x, a, b = x.contiguous(), a.contiguous(), b.contiguous()
    y = x if same else y.contiguous()
    num, size = x.shape[0], a.numel()
    blocks = -(-size // BLOCK)
    each = -(-num // min(num, max(1, PROGRAMS // blocks)))  # tangents of one program
    parts = -(-num // each)
    out, partial = torch.empty_like(x), x.new_empty(parts, *a.shape)
    program(_stretch_block)[(blocks, parts)](
        x, y, a, b, out, partial, num, size, each, SAME=same, BLOCK=BLOCK
    )
    return out, partial.sum(0) if parts > 1 else partial[0]


def _stretch_block(  # type: ignore[no-untyped-def]
    x, y, a, b, out, partial, num, size, each, SAME: tl.constexpr, BLOCK: tl.constexpr
):
    """Some numbers of some tangents; a Triton kernel."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(1).to(tl.int64)
    inside = column < size
    scale = tl.load(a + column, inside, 0.0)
    other = tl.load(b + column, inside, 0.0)
    total = tl.zeros([BLOCK], scale.dtype)
    for i in range(each):
        j = part * each + i
        here = inside & (j < num)
        at = j * size + column
        u = tl.load(x + at, here, 0.0)
        w = u if SAME else tl.load(y + at, here, 0.0)
        tl.store(out + at, scale * u if SAME else scale * u + other * w, here)
        total += u * w
    tl.store(partial + part * size + column, total, inside)

"""The log-probability of binary images and its derivative in one Triton kernel.

Annealed importance sampling evaluates them a hundred thousand times for twenty thousand images, and
its time is bound by memory traffic. Plain operations read or write the logits thirteen times; this
kernel reads them once and writes the derivative, ``x - sigmoid(l)``, once if it is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scorematching._triton import is_available, program
from scorematching.distributions.observations import BernoulliPixels, Observation

tl: Any = None  # triton.language, set by `_triton.program`


def log_prob(pixels: Observation, output: Tensor, x: Tensor) -> Tensor:
    """``log p(x | z)``, ``(*C, N, *event), (N, *event) -> (*C, N)``, differentiable once.

    By the kernel for binary pixels on a GPU with Triton, otherwise by ``pixels.log_prob``.
    """
    if output.dtype == torch.bfloat16 or not _applies(pixels, output):
        return pixels.log_prob(output, x)
    values: Tensor = _BernoulliLogProb.apply(
        output.reshape(-1, x[0].numel()), x.flatten(1).to(output)
    )
    return values.reshape(output.shape[: output.ndim - x.ndim + 1])


def slopes(pixels: Observation, output: Tensor, x: Tensor) -> Tensor:
    """The derivative of ``log p(x | z)`` by the output, in its shape and dtype, detached.

    Of bfloat16 it is computed in float32, and rounded. By the kernel for binary pixels on a GPU
    with Triton, otherwise by automatic differentiation of ``pixels.log_prob``.
    """
    wide = torch.promote_types(output.dtype, torch.float32)
    if _applies(pixels, output):
        logits = output.detach().reshape(-1, x[0].numel()).contiguous()
        found = torch.empty_like(logits)
        _launch(logits, x.flatten(1).to(wide), None, found)
        return found.reshape(output.shape)
    with torch.enable_grad():
        leaf = output.detach().to(wide, copy=True).requires_grad_()
        (found,) = torch.autograd.grad(pixels.log_prob(leaf, x).sum(), leaf)
    return found.to(output.dtype)


def _applies(pixels: Observation, output: Tensor) -> bool:
    """Whether there is a kernel for these pixels, on this device."""
    known = output.dtype in (torch.bfloat16, torch.float32, torch.float64)
    return type(pixels) is BernoulliPixels and output.is_cuda and known and is_available()


class _BernoulliLogProb(torch.autograd.Function):
    """``(R, D), (N, D) -> (R,)``; row i of the logits belongs to image ``i mod N``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, x: Tensor) -> Tensor:
        """``sum_d x_d l_d - log(1 + exp(l_d))``."""
        logits = logits.contiguous()
        values = logits.new_empty(len(logits))
        derivative = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        _launch(logits, x, values, derivative)
        ctx.save_for_backward(derivative)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """The derivative, which the forward pass has stored."""
        (derivative,) = ctx.saved_tensors
        return g[:, None] * derivative, None


def _launch(
    logits: Tensor, images: Tensor, values: Tensor | None, derivative: Tensor | None
) -> None:
    """Write values ``(R,)`` and derivatives ``(R, D)`` of logits ``(R, D)``, where asked for.

    The kernel computes in the dtype of the images, ``(N, D)``.
    """
    n, d = images.shape
    width = 1 << (d - 1).bit_length()
    program(_log_prob_row)[(len(logits),)](
        logits,
        images.contiguous(),
        logits if values is None else values,
        logits if derivative is None else derivative,
        n,
        d,
        width,
        values is not None,
        derivative is not None,
    )


def _log_prob_row(  # type: ignore[no-untyped-def]
    logits,
    images,
    values,
    slopes,
    n,
    d: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    SLOPES: tl.constexpr,
):
    """The sum of one row and its derivative; a Triton kernel."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < d
    pixel = tl.load(images + (row % n) * d + column, inside, 0.0)
    logit = tl.load(logits + row * d + column, inside, 0.0).to(pixel.dtype)
    tail = tl.exp(-tl.abs(logit))  # at most one, while exp(logit) may overflow
    if SLOPES:
        slope = pixel - tl.where(logit > 0, 1.0, tail) / (1 + tail)
        tl.store(slopes + row * d + column, slope, inside)
    if VALUES:
        softplus = tl.maximum(logit, 0.0) + tl.log(1 + tail)
        tl.store(values + row, tl.sum(tl.where(inside, pixel * logit - softplus, 0.0), 0))

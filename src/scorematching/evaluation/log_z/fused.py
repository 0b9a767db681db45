"""The log-probability of binary images and its derivative in one Triton kernel.

Annealed importance sampling evaluates it a hundred thousand times for twenty thousand images, and
its time is bound by memory traffic. Plain operations read or write the logits thirteen times; this
kernel reads them once and writes the derivative, ``x - sigmoid(l)``, once.
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
    applies = output.is_cuda and output.dtype in (torch.float32, torch.float64) and is_available()
    if type(pixels) is not BernoulliPixels or not applies:
        return pixels.log_prob(output, x)
    values: Tensor = _BernoulliLogProb.apply(
        output.reshape(-1, x[0].numel()), x.flatten(1).to(output)
    )
    return values.reshape(output.shape[: output.ndim - x.ndim + 1])


class _BernoulliLogProb(torch.autograd.Function):
    """``(R, D), (N, D) -> (R,)``; row i of the logits belongs to image ``i mod N``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, x: Tensor) -> Tensor:
        """``sum_d x_d l_d - log(1 + exp(l_d))``."""
        logits, x = logits.contiguous(), x.contiguous()
        values, slopes = logits.new_empty(len(logits)), torch.empty_like(logits)
        n, d = x.shape
        width = 1 << (d - 1).bit_length()
        program(_log_prob_row)[(len(logits),)](logits, x, values, slopes, n, d, width)
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """The derivative, which the forward pass has stored."""
        (slopes,) = ctx.saved_tensors
        return g[:, None] * slopes, None


def _log_prob_row(  # type: ignore[no-untyped-def]
    logits, images, values, slopes, n, d: tl.constexpr, WIDTH: tl.constexpr
):
    """The sum of one row and its derivative; a Triton kernel."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < d
    logit = tl.load(logits + row * d + column, inside, 0.0)
    pixel = tl.load(images + (row % n) * d + column, inside, 0.0)
    tail = tl.exp(-tl.abs(logit))  # at most one, while exp(logit) may overflow
    softplus = tl.maximum(logit, 0.0) + tl.log(1 + tail)
    slope = pixel - tl.where(logit > 0, 1.0, tail) / (1 + tail)
    tl.store(slopes + row * d + column, slope, inside)
    tl.store(values + row, tl.sum(tl.where(inside, pixel * logit - softplus, 0.0), 0))

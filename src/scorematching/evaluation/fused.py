"""The log-probability of many binary images on a GPU, with its derivative, in one reading.

Annealed importance sampling asks for this a hundred thousand times, of twenty thousand images at a
time, and most of its time goes into reading and writing them. Plain operations pass over the
logits thirteen times; the program below reads them once and writes the derivative,
``x - sigmoid(l)``, once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scorematching._triton import is_available, program
from scorematching.distributions.observations import BernoulliPixels, Observation

tl: Any = None  # the language of Triton, once a program runs


def log_prob(law: Observation, output: Tensor, x: Tensor) -> Tensor:
    """``log p(x | z)``, ``(*C, N, *event), (N, *event) -> (*C, N)``, to be differentiated once.

    By the program for binary pixels on a GPU with Triton; otherwise it is the law's own.
    """
    applies = output.is_cuda and output.dtype in (torch.float32, torch.float64) and is_available()
    if type(law) is not BernoulliPixels or not applies:
        return law.log_prob(output, x)
    values: Tensor = _InOneReading.apply(output.reshape(-1, x[0].numel()), x.flatten(1).to(output))
    return values.reshape(output.shape[: output.ndim - x.ndim + 1])


class _InOneReading(torch.autograd.Function):
    """The sum for every row, ``(R, D), (N, D) -> (R,)``; row i is about image ``i mod N``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, x: Tensor) -> Tensor:
        """``sum_d x_d l_d - log(1 + exp(l_d))``."""
        logits, x = logits.contiguous(), x.contiguous()
        values, slopes = logits.new_empty(len(logits)), torch.empty_like(logits)
        n, d = x.shape
        width = 1 << (d - 1).bit_length()
        program(_read_row)[(len(logits),)](logits, x, values, slopes, n, d, width)
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """The derivative, which is there already."""
        (slopes,) = ctx.saved_tensors
        return g[:, None] * slopes, None


def _read_row(  # type: ignore[no-untyped-def]
    logits, images, values, slopes, n, d: tl.constexpr, WIDTH: tl.constexpr
):
    """The sum of one row and its derivative, on the device."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < d
    logit = tl.load(logits + row * d + column, inside, 0.0)
    pixel = tl.load(images + (row % n) * d + column, inside, 0.0)
    tail = tl.exp(-tl.abs(logit))  # at most one, where exp(logit) may be too large for a number
    softplus = tl.maximum(logit, 0.0) + tl.log(1 + tail)
    slope = pixel - tl.where(logit > 0, 1.0, tail) / (1 + tail)
    tl.store(slopes + row * d + column, slope, inside)
    tl.store(values + row, tl.sum(tl.where(inside, pixel * logit - softplus, 0.0), 0))

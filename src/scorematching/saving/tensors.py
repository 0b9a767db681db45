"""Tensors for a file, and back to the same memory layout.

Matrix products of transposed matrices may round differently, so the order of the axes in memory is
kept too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def axes_in_memory(tensor: Tensor) -> list[int]:
    """The order of axes in which a tensor is contiguous; their own order if there is none."""
    plain = list(range(tensor.ndim))
    order = sorted(plain, key=lambda axis: -tensor.stride()[axis])
    dense = tensor.numel() > 0 and tensor.permute(order).is_contiguous()
    return order if dense and not tensor.is_contiguous() else plain


def to_file(tensor: Tensor, order: list[int]) -> Tensor:
    """A contiguous copy on the CPU, with axes in the given order."""
    moved = tensor.detach().permute(order).to("cpu", copy=True)
    return moved.contiguous()


def from_file(tensor: Tensor, order: list[int] | None, device: Any) -> Tensor:
    """A copy in memory of its own, with axes as they were."""
    copied = tensor.to(device, copy=True)
    if order is None:
        return copied
    inverse = torch.tensor(order).argsort().tolist()
    return copied.permute(inverse)

"""Tensors for a file, and back to the same layout in memory.

Products of transposed matrices may round differently, so the order of axes in memory is restored.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def axes_in_memory(tensor: Tensor) -> list[int] | None:
    """The order of axes in which a tensor is contiguous; None for their own order, or if none."""
    order = sorted(range(tensor.ndim), key=lambda axis: -tensor.stride()[axis])
    dense = tensor.permute(order).is_contiguous()
    return order if dense and not tensor.is_contiguous() else None


def to_file(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def from_file(tensor: Tensor, order: list[int] | None, device: Any) -> Tensor:
    """A copy in memory of its own, with axes in memory as they were."""
    copied = tensor.to(device, copy=True)
    if order is None:
        return copied
    inverse = sorted(range(len(order)), key=lambda axis: order[axis])
    return copied.permute(order).contiguous().permute(inverse)

"""Refusal of kernel matrices that do not fit into memory, before anything is allocated."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from scorematching._memory import Budget

_SMALL = 2**30
"""Bytes that are not worth asking the machine for its memory."""


def check_memory(samples: Tensor, matrices: int, advice: str, budget: Budget | None = None) -> None:
    """Require that square matrices of the number of samples fit into memory, and into a budget.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        matrices: how many M x M matrices of each set are in memory at once.
        advice: what to do about it.
        budget: of the computation.

    Raises:
        ValueError: if they take more than the memory of the machine, or of the GPU, or the budget.

    Example:
        >>> check_memory(torch.zeros(100, 2), matrices=4, advice="")
    """
    num = samples.shape[-2]
    each = matrices * samples.element_size() * samples.shape[:-2].numel()
    if budget is not None:
        budget.require(each * num**2, f"{matrices} matrices of {num} x {num} take")
    if each * num**2 <= _SMALL:
        return
    total = total_memory(samples.device)
    if each * num**2 > total:
        raise ValueError(
            f"samples must number at most {int((total / each) ** 0.5)} in this memory, got {num}: "
            f"{matrices} matrices of {num} x {num} take {each * num**2 / 1e9:.0f} GB of "
            f"{total / 1e9:.0f} GB; {advice}"
        )


def total_memory(device: torch.device) -> float:
    """Bytes of memory of a device; unlimited where that is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")

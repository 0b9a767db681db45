"""Values of many points within a budget of memory, which is measured."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scorematching._checks import check_count


class Allocations(TorchDispatchMode):
    """Counts the memory of tensors that are made inside the block.

    Memory that an operation uses while it runs and returns to the system is not seen.

    Attributes:
        peak: most bytes that were in use at one time.

    Example:
        >>> with Allocations() as used:
        ...     x = torch.zeros(1000, dtype=torch.float64) + 1
        >>> used.peak
        16000
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live, self._known = 0, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            self._see(tensor, new=False)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self._see(tensor, new=True)
        return result

    def _see(self, tensor: Any, new: bool) -> None:
        """Count the memory of a tensor until it is freed; what was there before counts nothing."""
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if new else 0
        self._known.add(key)
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def in_chunks(
    function: Callable[..., Tensor],
    rows: Sequence[Tensor],
    batch_size: int,
    max_memory: int | None = None,
) -> Tensor:
    """A function of points, some of them at a time: ``(N, ...) -> (N, ...)``.

    With a budget the first chunks have 1, 2, 4, ... points, and the memory that each takes is
    measured, until one of twice the size would exceed it; the others have the size that fills it.

    Args:
        function: of as many tensors as there are in rows.
        rows: tensors with the points along their first axis.
        batch_size: most points at a time.
        max_memory: bytes that one call may take, beside its arguments; None is without limit.

    Raises:
        ValueError: if one point takes more.

    Example:
        >>> in_chunks(torch.exp, [torch.zeros(3)], batch_size=2)
        tensor([1., 1., 1.])
    """
    if max_memory is None:
        parts = zip(*(row.split(batch_size) for row in rows), strict=True)
        return torch.cat([function(*part) for part in parts])
    check_count(max_memory, "max_memory", "it is a number of bytes, such as 2**30")
    found, done, size = list[Tensor](), 0, 1
    before, growing = (0, 0), True
    while done < len(rows[0]):
        part = [row[done : done + size] for row in rows]
        done += size
        if not growing or len(part[0]) < size:
            found.append(function(*part))
            continue
        with Allocations() as used:
            found.append(function(*part))
        _check_fits(used.peak, size, max_memory)
        wanted = _next_size(before, (size, used.peak), max_memory)
        before, growing = (size, used.peak), wanted == 2 * size
        size = min(batch_size, wanted)
        growing = growing and size > before[0]
    return torch.cat(found)


def _next_size(before: tuple[int, int], now: tuple[int, int], budget: int) -> int:
    """How many points fill a budget, from two sizes and their peaks; at most twice the last."""
    size, peak = now
    each = max((peak - before[1]) / (size - before[0]), 0.25 * peak / size)
    fits = size + int((budget - peak) / each) if each else 2 * size
    return max(1, min(2 * size, fits))


def _check_fits(peak: int, size: int, budget: int) -> None:
    if size == 1 and peak > budget:
        raise ValueError(
            f"max_memory must be at least {peak} bytes, which one point takes, got {budget}; use a "
            "larger budget or a smaller model"
        )

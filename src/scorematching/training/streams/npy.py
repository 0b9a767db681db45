"""Arrays in ``.npy`` files."""

from __future__ import annotations

import math
from pathlib import Path
from tokenize import TokenError

import numpy as np
import torch
from torch import Tensor

from scorematching.training.streams.source import BLOCK_BYTES, Source


class NpySource(Source):
    """An array ``(N, *event)`` of numbers in a ``.npy`` file.

    Blocks are read from the file, not from a memory map, whose pages would count as memory in use.

    Raises:
        ValueError: if the file is damaged, or holds anything else.
    """

    def __init__(self, path: Path) -> None:
        array = _map(path)
        self.path, self.event = path, array.shape[1:]
        self.dtype, self.offset, count = array.dtype, array.offset, len(array)
        self.numbers = math.prod(self.event)
        self.row_bytes = max(1, self.numbers) * self.dtype.itemsize
        self.rows = max(1, BLOCK_BYTES // self.row_bytes)
        self.sizes = [min(self.rows, count - start) for start in range(0, count, self.rows)]

    def read(self, block: int) -> Tensor:
        """The rows of a block."""
        size, first = self.sizes[block], block * self.rows
        start = self.offset + first * self.row_bytes
        flat = np.fromfile(self.path, self.dtype, size * self.numbers, offset=start)
        native = flat.astype(self.dtype.newbyteorder("="), copy=False)
        whole = len(native) // max(1, self.numbers)  # fewer, if the file has become shorter
        return torch.from_numpy(native[: whole * self.numbers].reshape(whole, *self.event))


def _map(path: Path) -> np.memmap:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, EOFError, OSError, SyntaxError, TokenError) as error:
        raise ValueError(
            f"{path} must be an array of numbers in numpy's format, got: {error}; write it with "
            "numpy.save"
        ) from error
    if not isinstance(array, np.memmap):
        raise ValueError(f"{path} must hold one array, got an archive of several; save one of them")
    sound = array.dtype.kind in "iuf" and array.ndim >= 1 and array.flags.c_contiguous
    if not sound or array.dtype.itemsize > 8:
        order = "" if array.flags.c_contiguous else " in Fortran's order"
        raise ValueError(
            f"{path} must hold real numbers (N, *event), got {array.dtype} of shape "
            f"{array.shape}{order}; convert it with numpy.ascontiguousarray(x, dtype=numpy.float32)"
        )
    return array

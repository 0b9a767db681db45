"""The order of rows in one epoch: blocks in random order, shuffled some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """Blocks that are shuffled among each other.

    Attributes:
        blocks: their numbers, in the order in which they are read.
        start: rows of the epoch before this window.
        rows: rows in it.
        seed: of the order of its rows.
    """

    blocks: list[int]
    start: int
    rows: int
    seed: int

    def places(self) -> Tensor:
        """For each row, in the order in which they are read, its place in the window."""
        return torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.seed))


def windows(sizes: Sequence[int], per_window: int, seed: int) -> list[Window]:
    """The windows of an epoch, from the rows of each block; the last may have fewer blocks.

    The same seed gives the same order.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(sizes), generator=generator).tolist()
    groups = [order[i : i + per_window] for i in range(0, len(order), per_window)]
    seeds = torch.randint(2**62, (len(groups),), generator=generator).tolist()
    found, start = [], 0
    for blocks, own in zip(groups, seeds):
        rows = sum(sizes[block] for block in blocks)
        found.append(Window(blocks, start, rows, own))
        start += rows
    return found

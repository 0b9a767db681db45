"""A stream of shuffled batches from a file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from scorematching.datasets.preprocess import Standardise
from scorematching.training.streams.order import Window, windows
from scorematching.training.streams.source import Source


@dataclass(frozen=True)
class Moments:
    """Means and standard deviations of all rows.

    Attributes:
        count: number of rows.
        mean: ``(*event,)``, in double precision.
        std: ``(*event,)``, with the count as divisor.

    Example:
        >>> Moments(2, torch.zeros(1), torch.ones(1)).count
        2
    """

    count: int
    mean: Tensor
    std: Tensor


class Stream:
    """Points in a file, for ``train(data=)``; made by `open_stream`.

    Attributes:
        columns: names of a table's columns.
        event: shape of a point.
        dtype: of the points.
        blocks_per_window: blocks that are shuffled among each other.

    Example:
        >>> import tempfile, numpy
        >>> from scorematching.training import open_stream
        >>> path = tempfile.mkdtemp() + "/x.npy"
        >>> numpy.save(path, numpy.arange(6.0).reshape(6, 1))
        >>> stream = open_stream(path)
        >>> len(stream), sorted(torch.cat(list(stream.batches(2, seed=0))).flatten().tolist())
        (6, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    """

    def __init__(self, source: Source, dtype: torch.dtype, max_memory: int) -> None:
        self.source, self.dtype = source, dtype
        self.columns, self.event = source.columns, source.event
        self.rows = sum(source.sizes)
        if not self.rows:
            raise ValueError(f"{source.path} must hold rows, got none; choose another file")
        self.blocks_per_window = _blocks_per_window(source, dtype, max_memory)

    def __len__(self) -> int:
        """Number of rows."""
        return self.rows

    def batches(
        self, size: int, seed: int, start: int = 0, drop_last: bool = True
    ) -> Iterator[Tensor]:
        """The batches of one epoch, ``(size, *event)``, from a given one on.

        The next window is read by another thread.

        Args:
            size: rows of a batch.
            seed: of the order of rows.
            start: number of the first batch. Those before it are not read.
            drop_last: leave out the rows at the end that do not fill a batch.

        Raises:
            ValueError: names the row, if a number is missing or not finite.
        """
        left = (self.rows // size if drop_last else -(-self.rows // size)) - start
        if left <= 0:
            return
        skipped = start * size
        order = windows(self.source.sizes, self.blocks_per_window, seed)
        needed = [window for window in order if window.start + window.rows > skipped]
        rest = torch.empty(0, *self.event, dtype=self.dtype)
        for window, rows in zip(needed, self._read_ahead(needed)):
            rows = rows[max(0, skipped - window.start) :]
            missing = (size - len(rest)) % size
            rest, rows = torch.cat([rest, rows[:missing]]), rows[missing:]
            full = [rest] if len(rest) == size else []
            whole = len(rows) // size * size
            yield from islice(chain(full, rows[:whole].split(size) if whole else ()), left)
            left -= len(full) + whole // size
            rest = torch.cat([rest[:0] if full else rest, rows[whole:]])
        if left > 0:
            yield rest  # fewer than a batch

    def summary(self) -> dict[str, Any]:
        """What the order of rows follows from, besides the seed, and the columns."""
        return {
            "rows": self.rows,
            "event": list(self.event),
            "columns": list(self.columns),
            "blocks": len(self.source.sizes),
            "blocks per window, which follow from max_memory,": self.blocks_per_window,
        }

    def moments(self) -> Moments:
        """Means and standard deviations, by one pass over the file.

        Blocks are merged by Chan's formula, in double precision.
        """
        count, mean, squares = 0, torch.zeros(()), torch.zeros(())
        for block in range(len(self.source.sizes)):
            x = self._block(block, torch.float64)
            own, n = x.mean(0), len(x)
            shift, total = own - mean, count + n
            squares = squares + (x - own).square().sum(0) + shift.square() * (count * n / total)
            mean, count = mean + shift * (n / total), total
        return Moments(count, mean, (squares / count).sqrt())

    def standardise(self) -> Standardise:
        """The transform of all rows to mean 0 and standard deviation 1, by one pass.

        Raises:
            ValueError: names the columns that are constant, or that the stream's dtype rounds.
        """
        moments = self.moments()
        constant = (moments.std <= 1e-12 * moments.mean.abs()).nonzero().tolist()
        if constant:
            names = ", ".join(self.source.column(place) for place in constant)
            raise ValueError(
                f"columns must vary, got constant {names} in {self.source.path}; leave them out "
                "with columns="
            )
        self._require_digits(moments)
        return Standardise(moments.mean.to(self.dtype), moments.std.to(self.dtype))

    def _require_digits(self, moments: Moments) -> None:
        """Refuse columns so far from zero that rounding to the stream's dtype is seen in them."""
        step = torch.finfo(self.dtype).eps * moments.mean.abs()
        rounded = (moments.std < 100 * step).nonzero().tolist()
        if rounded and self.dtype != torch.float64:
            names = ", ".join(self.source.column(place) for place in rounded)
            raise ValueError(
                f"dtype must hold the differences between rows, got {self.dtype} for {names} in "
                f"{self.source.path}, which rounds them; pass dtype=torch.float64 to open_stream, "
                "and transform=lambda x, generator: scale(x).float() to train"
            )

    def _read_ahead(self, order: list[Window]) -> Iterator[Tensor]:
        """The rows of windows; each is read while the one before it is used."""
        with ThreadPoolExecutor(1, "scorematching-stream") as reader:
            coming = reader.submit(self._window, order[0])
            for following in [*order[1:], None]:
                rows = coming.result()
                if following is not None:
                    coming = reader.submit(self._window, following)
                yield rows

    def _window(self, window: Window) -> Tensor:
        """The rows of a window, shuffled."""
        places, done = window.places(), 0
        rows = torch.empty(window.rows, *self.event, dtype=self.dtype)
        for block in window.blocks:
            x = self._block(block, self.dtype)
            rows.index_copy_(0, places[done : done + len(x)], x)
            done += len(x)
        return rows

    def _block(self, block: int, dtype: torch.dtype) -> Tensor:
        """A block whose numbers are finite."""
        found, size = self.source.read(block), self.source.sizes[block]
        if len(found) != size:
            raise ValueError(
                f"{self.source.path} must not change while it is read, got {len(found)} rows in "
                f"block {block} instead of {size}; open it again"
            )
        x = found.to(dtype)
        self.source.require_finite(x, found, sum(self.source.sizes[:block]))
        return x


def _blocks_per_window(source: Source, dtype: torch.dtype, max_memory: int) -> int:
    """As many blocks as fit twice, with their places, beside one that is being read.

    Raises:
        ValueError: if not even one fits.
    """
    numbers = math.prod(source.event)
    row, largest = numbers * dtype.itemsize + 8, max(source.sizes)
    reading = largest * (source.row_bytes + 8 * numbers)
    found = (max_memory - reading) // (2 * largest * row)
    if found < 1:
        need = (reading + 2 * largest * row) >> 20
        raise ValueError(
            f"max_memory must hold the largest block of {source.path} three times, {need + 1} MB, "
            f"got {max_memory >> 20} MB; raise it, or write the file with smaller row groups"
        )
    return int(min(found, len(source.sizes)))

"""How much memory a table needs, before it is read, and how much there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scorematching._extras import import_extra

_COPIES, _TEXT_COPIES = 11, 8
"""Memory at the peak, while columns and copies of rows are searched: of a table of numbers relative
to its numbers, and of a text file relative to its size, as measured."""


_BLOCK = 1 << 20


class Size(NamedTuple):
    """What is known of a file before it is read.

    Attributes:
        rows: of the table, None where the file does not say.
        columns: of the table, None where the file does not say.
        need: bytes that reading and preparing all of it takes.
    """

    rows: int | None
    columns: int | None
    need: int

    def __str__(self) -> str:
        """Rows and columns, where they are known, and the memory."""
        shape = f"{self.rows:,} rows of {self.columns} columns, " if self.rows is not None else ""
        return f"{shape}about {in_words(self.need)} in memory"


def size_of(path: Path) -> Size:
    """The size of the table in a file, from its first or last bytes; sound or not.

    Args:
        path: a csv, tsv, txt, parquet or npy file.
    """
    on_disk = path.stat().st_size
    if path.suffix.lower() not in (".parquet", ".npy"):
        return Size(None, None, _TEXT_COPIES * on_disk)
    try:
        rows, columns = _shape(path)
    except Exception:  # a damaged file, which the reader names
        return Size(None, None, on_disk)
    return Size(rows, columns, on_disk + 8 * _COPIES * rows * columns)


def _shape(path: Path) -> tuple[int, int]:
    if path.suffix.lower() == ".npy":
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
        return int(shape[0]), int(np.prod(shape[1:]))
    found = import_extra("pyarrow.parquet", "tables").read_metadata(path)
    return int(found.num_rows), int(found.num_columns)


def rows_within(path: Path, max_memory: int) -> int | None:
    """How many rows of a file fit into a limit; None if all do.

    Args:
        path: of the file; the lines of a text file are counted.
        max_memory: bytes for the table and its copies while it is prepared.
    """
    size = size_of(path)
    if size.need <= max_memory:
        return None
    if size.columns is not None:
        return max_memory // (8 * _COPIES * max(1, size.columns))
    return int(max_memory / size.need * count_lines(path))


def check_memory(path: Path, max_rows: int | None, advice: str) -> None:
    """Require that a table fits into the memory that there is.

    Args:
        path: of the file.
        max_rows: rows that are read; None is all.
        advice: what to do about it.

    Raises:
        ValueError: says how large it would be, and how much memory there is.
    """
    size, free = size_of(path), available_memory()
    if size.need <= free:
        return
    if max_rows is not None and (rows_within(path, int(free)) or 0) >= max_rows:
        return
    shown = "" if max_rows is None else f", of which {max_rows:,} rows do not fit either"
    raise ValueError(
        f"{path} must fit into memory, got {size}, where {in_words(free)} are available{shown}; "
        f"{advice}"
    )


def count_lines(path: Path) -> int:
    """Lines of a text file, the last one with or without an end."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def available_memory() -> float:
    """Bytes that a process can still take; unlimited where that is unknown."""
    found = [float("inf")]
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    try:
        words = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        found.append(1024.0 * int(words["MemAvailable"].split()[0]))
    except (OSError, KeyError, ValueError):
        pass
    try:
        used = int(limit.with_name("memory.current").read_text())
        found.append(float(int(limit.read_text()) - used))
    except (OSError, ValueError):  # no limit
        pass
    if len(found) == 1 and hasattr(os, "sysconf"):
        found.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    return min(found)


def in_words(count: float) -> str:
    """A number of bytes, in MB or GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"

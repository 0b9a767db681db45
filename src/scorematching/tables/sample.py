"""Some rows of a file, drawn uniformly at random, without reading all of them into memory."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorematching._extras import import_extra

Rows = NDArray[np.int64]


def drawn_rows(total: int, count: int, seed: int) -> Rows:
    """Numbers of rows, drawn without replacement, in order.

    Args:
        total: rows of the file.
        count: rows to draw, at most all.
        seed: of the draw.

    Example:
        >>> rows = drawn_rows(10, 3, seed=0)
        >>> len(set(rows.tolist())), bool((rows[:-1] < rows[1:]).all())
        (3, True)
    """
    if count >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(seed).choice(total, count, replace=False))


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read block by block."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample_parquet(path: Path, count: int, seed: int) -> tuple[Any, Rows, int]:
    """Rows of a parquet file, one row group at a time: data frame, their numbers, rows of the file.

    Raises:
        ValueError: if the file is damaged.
    """
    arrow, parquet = (import_extra(name, "tables") for name in ("pyarrow", "pyarrow.parquet"))
    try:
        file = parquet.ParquetFile(path)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        rows = drawn_rows(sum(groups), count, seed)
        ends = np.cumsum([0, *groups])
        places = np.searchsorted(rows, ends)
        parts = [
            file.read_row_group(i, use_threads=False).take(rows[a:b] - ends[i])
            for i, (a, b) in enumerate(pairwise(places))
            if a < b
        ]
        frame = arrow.concat_tables(parts).to_pandas()
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} must be a parquet file, got: {reason}; write it again") from error
    return frame, rows, sum(groups)


def sample_lines(path: Path, count: int, seed: int) -> tuple[bytes, Rows, int]:
    """Lines of a text file, after the first one: their bytes, their numbers, lines of the file.

    The first line is always kept; it may have the names of the columns. Empty lines do not count.

    Raises:
        ValueError: if a line cannot be told from the next by its end alone.
    """
    with path.open("rb") as file:
        total = max(0, sum(1 for line in file if line.strip()) - 1)
    wanted = iter(drawn_rows(total, count, seed).tolist())
    following, rows, lines = next(wanted, None), [], []
    with path.open("rb") as file:
        numbered = ((place, line) for place, line in enumerate(file, 1) if line.strip())
        place, first = next(numbered, (1, b""))
        _check_line(path, first, place)
        for number, (place, line) in enumerate(numbered):
            if number == following:
                _check_line(path, line, place)
                rows.append(number)
                lines.append(line.rstrip(b"\r\n"))
                following = next(wanted, None)
                if following is None:
                    break
    return b"\n".join([first.rstrip(b"\r\n"), *lines]), np.array(rows, dtype=np.int64), total


def _check_line(path: Path, line: bytes, number: int) -> None:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(
            f"{path} must be text in UTF-8 for a sample of its rows, got UTF-16; save it again"
        )
    if b"\r" in line.rstrip(b"\r\n"):
        raise ValueError(
            f"{path}, line {number}: a carriage return alone, with which old programs end lines; "
            "save the file again, with usual ends of lines, for a sample of its rows"
        )
    if line.count(b'"') % 2:
        raise ValueError(
            f"{path}, line {number}: a quote that does not end in the same line; rows of such a "
            "file cannot be sampled, save it as parquet"
        )

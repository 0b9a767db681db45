"""The stream of a file, by the file's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from scorematching._checks import check_count
from scorematching.training.streams.csv import CsvSource
from scorematching.training.streams.npy import NpySource
from scorematching.training.streams.parquet import ParquetSource
from scorematching.training.streams.source import Source
from scorematching.training.streams.stream import Stream


def open_stream(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    delimiter: str = ",",
    dtype: torch.dtype = torch.float32,
    max_memory: int = 256 << 20,
) -> Stream:
    """Points in a file that need not fit into memory, for ``train(data=)``.

    Args:
        path: a ``.npy`` file with an array ``(N, *event)``; a table of numbers in a ``.csv``,
            ``.tsv`` or ``.txt`` file, or in a ``.parquet`` file or a folder of them.
        columns: of a table; None takes all.
        delimiter: between the columns of a text file; tabs in a ``.tsv`` file.
        dtype: of the points.
        max_memory: bytes for rows in memory. More is better mixing.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: if pyarrow, which reads tables, is missing.
        ValueError: if the file holds something else.

    Example:
        >>> stream = open_stream("flights.parquet")  # doctest: +SKIP
        >>> scale = stream.standardise()  # doctest: +SKIP
        >>> train(  # doctest: +SKIP
        ...     model, objective, stream, config, transform=lambda x, generator: scale(x)
        ... )
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"path must be a file, got {path}, which does not exist")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    check_count(max_memory, "max_memory", "it counts bytes")
    return Stream(_source(path, columns, delimiter), dtype, max_memory)


def _source(path: Path, columns: Sequence[str] | None, delimiter: str) -> Source:
    kind = path.suffix.lower()
    if path.is_dir() or kind in (".parquet", ".pq"):
        return ParquetSource(path, columns)
    if kind in (".csv", ".tsv", ".txt"):
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise ValueError(f"delimiter must be one character, got {delimiter!r}; try ','")
        return CsvSource(path, columns, "\t" if kind == ".tsv" else delimiter)
    if kind != ".npy":
        raise ValueError(
            f"path must end in .npy, .csv, .tsv, .txt or .parquet, got {path}; rename or convert it"
        )
    if columns is not None:
        raise ValueError(f"columns must be left out for an array, got {columns!r} for {path}")
    return NpySource(path)

"""Tables of numbers in text files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._tables import names_by_numbers
from scorematching.training.streams.arrow import import_arrow, to_rows
from scorematching.training.streams.source import BLOCK_BYTES, Source, choose_columns

MISSING = ("", "na", "n/a", "null", "none", "?", "-")
"""Fields, in small letters, that are no names beside numbers."""


_SNIFFED = 20
"""Lines that tell whether the first one has names."""


class Piece(NamedTuple):
    """A part of a file that begins and ends with a line."""

    start: int
    length: int
    line: int  # number of its first line, from one


class CsvSource(Source):
    """Columns of numbers in a text file, with a line of names or without.

    The file is read once when it is opened, which finds all mistakes in it before training begins.
    Line breaks inside quotes are not supported.

    Raises:
        ImportError: if pyarrow is missing.
        ValueError: names the line, if something else than a number is there.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None, delimiter: str) -> None:
        self.arrow, self.path, self.delimiter = import_arrow(), path, delimiter
        with path.open("rb") as file:
            first, *following = (file.readline(BLOCK_BYTES) for _ in range(_SNIFFED))
        line = _decoded(path, first)
        self.names, skipped = _names(path, line, following, delimiter)
        self.columns = choose_columns(path, self.names, columns)
        _require_named(path, self.columns)
        self.event, self.row_bytes = (len(self.columns),), 16 * len(self.names)
        self.pieces, self.sizes, count = [], [], 0
        for piece in _pieces(path, len(first) if skipped else 0, 1 + skipped):
            rows = self.parse(piece)
            self.require_finite(rows, rows, count)
            if len(rows):
                self.pieces.append(piece)
                self.sizes.append(len(rows))
            count += len(rows)

    def read(self, block: int) -> Tensor:
        """The rows of a block."""
        return self.parse(self.pieces[block])

    def parse(self, piece: Piece) -> Tensor:
        """The rows of a part of the file."""
        with self.path.open("rb") as file:
            file.seek(piece.start)
            content = file.read(piece.length)
        if not content.strip():
            return torch.empty(0, len(self.columns), dtype=torch.float64)
        formats = self.arrow.csv
        reading = formats.ReadOptions(column_names=list(self.names), use_threads=False)
        types = dict.fromkeys(self.names, self.arrow.float64())
        kept = formats.ConvertOptions(column_types=types, include_columns=list(self.columns))
        parsing = formats.ParseOptions(delimiter=self.delimiter)
        try:
            table = formats.read_csv(self.arrow.BufferReader(content), reading, parsing, kept)
        except self.arrow.ArrowException as error:
            raise ValueError(
                f"{self.path} must hold {len(self.names)} numbers per line, separated by "
                f"{self.delimiter!r}, got, in line {piece.line} or after it: "
                f"{str(error).splitlines()[0]}; correct the line, or leave out columns of words"
            ) from error
        return to_rows(table)


def _decoded(path: Path, line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be text in UTF-8, got: {error}; save it again in that encoding"
        ) from error
    if not text.strip() or "\0" in text:
        raise ValueError(
            f"{path} must begin with a line of names or numbers, got {text[:20]!r}; save it again "
            "as text in UTF-8"
        )
    return text


def _names(
    path: Path, line: str, following: Sequence[bytes], delimiter: str
) -> tuple[tuple[str, ...], bool]:
    """The names of the columns, and whether the file has a line of them, from its first lines."""
    below = (other.decode("latin-1") for other in following if other.strip())
    try:
        fields, *rows = csv.reader([line.removeprefix("\ufeff"), *below], delimiter=delimiter)
    except csv.Error as error:
        raise ValueError(
            f"{path} must begin with a line of names or numbers, got: {error}; save it again with "
            "one row per line"
        ) from error
    others = [mark for mark in ",;\t|" if mark != delimiter and mark in line]
    if len(fields) == 1 and others:
        raise ValueError(
            f"{path} must have columns separated by {delimiter!r}, got one column with "
            f"{others[0]!r} in it; pass delimiter={others[0]!r}"
        )
    names = tuple(field.strip() for field in fields)
    index = not names[0]  # of pandas
    if names_by_numbers([names[index:], *(row[index:] for row in rows)]):
        return names, True
    if all(_is_number(name) for name in names):
        return tuple(map(str, range(len(names)))), False
    if any(_is_number(name) for name in names) and all(
        _is_number(name) or name.lower() in MISSING for name in names
    ):
        raise ValueError(
            f"{path} must begin with a line of names or numbers, got {line.strip()[:60]!r}, "
            "numbers with missing values; remove or replace missing values first"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"{path} must have columns of different names, got {names}; rename some")
    return names, True


def _require_named(path: Path, names: Sequence[str]) -> None:
    """Refuse a column without a name: it is the index that pandas writes, not a measurement."""
    if "" in names:
        raise ValueError(
            f"{path} must have a name for every column, got none for column {names.index('') + 1}, "
            "as pandas writes for its index; choose others with columns=, or write the file with "
            "index=False"
        )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _pieces(path: Path, start: int, line: int) -> Iterator[Piece]:
    """Parts of about a block, each of which ends with a line."""
    with path.open("rb") as file:
        file.seek(start)
        while content := file.read(BLOCK_BYTES):
            content += file.readline()
            yield Piece(start, len(content), line)
            start, line = start + len(content), line + content.count(b"\n")

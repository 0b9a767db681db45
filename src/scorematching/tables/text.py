"""Text files with a table: their encoding, delimiter, header and decimal mark."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from scorematching._tables import names_by_numbers
from scorematching.tables.first_row import stands_apart
from scorematching.tables.kinds import is_date

_DELIMITERS = (",", ";", "\t", "|", " ")
_SNIFFED, _AGREED = 50, 0.9
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
_WITH_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*$")
_SPACED = re.compile(r"(\s*[-+]?(0|[1-9]\d*)(,\d+([eE][-+]?\d+)?)?(?=\s)){2,}\s*$")
"""Numbers with spaces between them, some with decimal commas; a space follows the last one."""

_GROUPED = re.compile(r"\s*[-+]?[1-9]\d{0,2}([.,]\d{3})+\s*$")
_BELOW_THOUSAND = re.compile(r"\s*[-+]?\d{1,3}\s*$")
_MISSING = {"", "na", "nan", "n/a", "null", "none", "-nan", "#n/a", "<na>"}
_MARKS = {"?", "-", "--", ".", "*"}
"""Signs of missing values that are no names of columns; values of a column they may not be."""

CLOSE_QUOTES = "close the quotes around text in its line, and leave out fields of very long text"
"""What to do about text that cannot be split into rows."""

NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "space"}


@dataclass(frozen=True)
class Dialect:
    """How a text file writes a table.

    Attributes:
        encoding: of the bytes.
        delimiter: between fields.
        header: whether the first line names the columns.
        decimal: the decimal mark.
    """

    encoding: str
    delimiter: str
    header: bool
    decimal: str


def decode(content: bytes, name: str) -> tuple[str, str]:
    """The text of a file and its encoding: UTF-8, UTF-16 with its mark, or Latin-1.

    Raises:
        ValueError: if the file is empty, or is no text.
    """
    if not content.strip():
        raise ValueError(f"{name} is empty; a table has a line of names and a line for each row")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16"), "utf-16"
    if b"\0" in content[:4096]:
        raise ValueError(
            f"{name} is not a text file; save the table as csv, tsv, parquet or npy, with the "
            "suffix that says so"
        )
    try:
        return content.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        # Every byte is a character of Latin-1; cp1252 has quotes and the euro sign in its gaps.
        try:
            return content.decode("cp1252"), "cp1252"
        except UnicodeDecodeError:
            return content.decode("latin-1"), "latin-1"


def sniff(text: str, encoding: str, delimiter: str | None = None) -> Dialect:
    r"""The dialect of a text, from its first lines.

    Args:
        text: of the file.
        encoding: that it was written in.
        delimiter: where it is known; None finds it.

    Example:
        >>> sniff("a;b\n1,5;2\n", "utf-8")
        Dialect(encoding='utf-8', delimiter=';', header=True, decimal=',')
    """
    lines = list(islice((line for line in lines_of(text) if line.strip()), _SNIFFED))
    found = _delimiter(lines) if delimiter is None else delimiter
    rows = list(csv.reader(lines, delimiter=found, skipinitialspace=True))
    header = not _begins_with_row(rows, found) or names_by_numbers(rows)
    cells = [cell for row in rows[header:] for cell in row]
    commas = [cell for cell in cells if _WITH_COMMA.match(cell)]
    points = [cell for cell in cells if "." in cell and _is_number(cell)]
    comma = found != "," and _weight(commas) > _weight(points)
    return Dialect(encoding, found, header, "," if comma else ".")


def _weight(cells: list[str]) -> tuple[int, int]:
    """Numbers whose mark can only be decimal, then all: that of 10.125 may be of thousands."""
    return sum(not _GROUPED.match(cell) for cell in cells), len(cells)


def perhaps_thousands(text: str, dialect: Dialect) -> dict[int, str]:
    r"""A number of each column whose points may separate thousands, by the number of the column.

    Such as 2.053 beside 487 and 12.345 in a file from Germany: all points are followed by three
    digits, and numbers without one are below 1000. Looked at are the first lines. Where commas
    separate fields, points are decimal.

    Example:
        >>> text = "a;b\n1.5;2.053\n2;487\n"
        >>> perhaps_thousands(text, sniff(text, "utf-8"))
        {1: '2.053'}
    """
    if dialect.delimiter == "," or dialect.decimal == ",":
        return {}
    lines = islice((line for line in lines_of(text) if line.strip()), _SNIFFED)
    rows = list(csv.reader(lines, delimiter=dialect.delimiter, skipinitialspace=True))
    columns = enumerate(zip(*rows[dialect.header :]))
    found = {i: [cell for cell in cells if not is_missing(cell)] for i, cells in columns}
    return {
        i: next(cell for cell in cells if "." in cell)
        for i, cells in found.items()
        if all(_GROUPED.match(cell) or _BELOW_THOUSAND.match(cell) for cell in cells)
        and len({"." in cell for cell in cells}) == 2
    }


def lines_of(text: str) -> Iterable[str]:
    r"""Lines with their ends; form feeds, which end lines of `str.splitlines`, do not end them.

    Example:
        >>> list(lines_of("a\r\nb\fc\n"))
        ['a\r\n', 'b\x0cc\n']
    """
    return io.StringIO(text, newline="")


def _delimiter(lines: list[str]) -> str:
    """The first delimiter that nearly all lines agree on, or else the one most of them do."""
    shares = {delimiter: _agreement(lines, delimiter) for delimiter in _DELIMITERS}
    if not any(shares.values()):
        return ","
    clear = [delimiter for delimiter, share in shares.items() if share >= _AGREED]
    return clear[0] if clear else max(_DELIMITERS, key=lambda delimiter: shares[delimiter])


def _agreement(lines: list[str], delimiter: str) -> float:
    """The share of lines with the usual number of fields; zero if that is one."""
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    counts = Counter(len(row) for row in reader)
    fields, most = max(counts.items(), key=lambda item: (item[1], item[0]))
    # A comma inside the numbers of a file with semicolons is as regular as its semicolons.
    inside = delimiter == "," and _commas_are_decimal(lines)
    return 0.0 if fields < 2 or inside else most / counts.total()


def _commas_are_decimal(lines: list[str]) -> bool:
    """Whether another delimiter is in every line, so that commas are decimal marks or text."""
    beside = (all(mark in line and f",{mark}" not in line for line in lines) for mark in "\t|")
    return all(";" in line for line in lines) or any(beside) or _are_spaced(lines)


def _are_spaced(lines: list[str]) -> bool:
    """Whether lines are numbers with decimal commas between spaces, perhaps below names."""
    numbers = all(_SPACED.match(f"{line} ") for line in lines[1:] or lines)
    return numbers and len({len(line.split()) for line in lines}) == 1


def _begins_with_row(rows: list[list[str]], delimiter: str) -> bool:
    """Whether the first line has no names: numbers, missing values, and text as in other rows.

    An empty first field is of names, unless another row has one, too. Names beside numbers, such as
    wavelengths, are of columns without text, or are found in no other row, where the numbers stand
    apart from those below, or are whole above columns of fractions.
    """
    first, *others = rows
    kinds = [_kind(cell, delimiter) for cell in first]
    above_index = not first[0].strip() and all(row[0].strip() for row in others)
    if above_index or "number" not in kinds:
        return False
    if "text" not in kinds:
        return True
    below = [row for row in others if len(row) == len(first) and row != first]
    columns = [[cell for cell in cells if not is_missing(cell)] for cells in zip(*below)]
    alike = [_mostly(cells, kind, delimiter) for cells, kind in zip(columns, kinds)]
    if not columns or not all(alike):
        return False
    of = {kind: [(c, b) for c, b, k in zip(first, columns, kinds) if k == kind] for kind in kinds}
    again = any(is_date(cell) or cell in cells for cell, cells in of["text"])
    whole = all(cell.strip().isdigit() and _are_fractions(cells) for cell, cells in of["number"])
    if again or whole:
        return again
    places = [i for i, kind in enumerate(kinds) if kind == "number"]
    numbers = [[_value(row[i], delimiter) for i in places] for row in (first, *below)]
    return not stands_apart(np.array(numbers))


def _mostly(cells: list[str], kind: str, delimiter: str) -> bool:
    """Whether most fields of a column are of a kind, or the kind says nothing of others."""
    same = sum(_kind(cell, delimiter) == kind for cell in cells)
    return kind == "missing" or not cells or 2 * same > len(cells)


def _are_fractions(cells: list[str]) -> bool:
    """Whether nearly all fields are no whole numbers."""
    fractions = sum(not cell.strip().lstrip("+-").isdigit() for cell in cells)
    return fractions > 0 and fractions >= _AGREED * len(cells)


def _value(cell: str, delimiter: str) -> float:
    """The number in a field, NaN if it has none."""
    return float(cell.replace(",", ".")) if _kind(cell, delimiter) == "number" else math.nan


def _kind(cell: str, delimiter: str) -> str:
    if _is_number(cell) or (delimiter != "," and _WITH_COMMA.match(cell)):
        return "number"
    return "missing" if is_missing(cell) or cell.strip() in _MARKS else "text"


def _is_number(cell: str) -> bool:
    return bool(_NUMBER.match(cell))


def is_missing(cell: Any) -> bool:
    """Whether a field of a text file stands for a missing value."""
    return str(cell).strip().lower() in _MISSING


def check_lines(text: str, dialect: Dialect, name: str) -> None:
    """Require the same number of fields in every line, and at least one row.

    Raises:
        ValueError: with the number of the first line that differs, or has a quote that does not end
            before the next rows.
    """
    if text[:4].lower() == "sep=":
        line = next(iter(lines_of(text))).strip()
        raise ValueError(
            f"{name} must begin with the line of names, got {line!r}, which is for Excel; remove "
            "that line"
        )
    reader = csv.reader(lines_of(text), delimiter=dialect.delimiter, skipinitialspace=True)
    numbered = _numbered(reader, name)
    first = next(row for _, row in numbered if row)
    rows = int(not dialect.header)
    for start, row in numbered:
        rows += bool(row)
        if reader.line_num > start:
            _refuse_swallowed(row, len(first), dialect.delimiter, f"{name}, line {start}")
        if row and len(row) != len(first) and not _trails(row, first):
            kind = "the line of names" if dialect.header else "the first line"
            advice = _advice(first, row, rows)
            raise ValueError(
                f"{name}, line {reader.line_num}: {len(row)} fields where {kind} has "
                f"{len(first)}, separated by {NAMES[dialect.delimiter]}; {advice}"
            )
    if rows == 0:
        raise ValueError(f"{name} has a line of names and no rows below it; nothing can be fitted")


def _numbered(reader: Any, name: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of a reader of the csv module, each with the number of the line that it begins in."""
    line = 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{name}, line {line}: {error}; {CLOSE_QUOTES}") from error


def _refuse_swallowed(row: list[str], fields: int, delimiter: str, place: str) -> None:
    """Refuse a quote that ends some rows later: these would be text inside one field.

    Args:
        row: its fields.
        fields: of every row.
        delimiter: between them.
        place: the file and the line, for the message.
    """
    for cell in row:
        inside = cell.splitlines()[1:-1] if fields > 1 and "\n" in cell else []
        cells = [next(csv.reader([line], delimiter=delimiter), []) for line in inside]
        if any(len(each) == fields and any(map(_is_number, each)) for each in cells):
            raise ValueError(
                f"{place}: a quote that ends {len(inside) + 1} lines later, after rows of numbers, "
                f"which would be text; {CLOSE_QUOTES}"
            )


def _advice(first: list[str], row: list[str], number: int) -> str:
    """What to do about a row with another number of fields than the first line.

    Args:
        first: the first line.
        row: the line.
        number: of the row.
    """
    if first[0].startswith("#"):
        return f"remove lines of comments, such as {first[0]!r}"
    if len(first) == 1:
        return "remove lines above the names of the columns; write points for decimal commas"
    if number == 1 and len(row) == len(first) + 1:
        return "give the column with the names of rows a name, too (in R: col.names=NA)"
    return "correct the line, or put quotes around text that holds the separator"


def _trails(row: list[str], first: list[str]) -> bool:
    """Whether a line merely ends with a delimiter that the first line does not have."""
    return len(row) == len(first) + 1 and not row[-1].strip()

"""Tables from files and from embedded data sets, as data frames."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch

from scorematching import datasets
from scorematching._extras import import_extra
from scorematching.tables.first_row import perhaps_decimals, perhaps_names, perhaps_row
from scorematching.tables.sample import (
    Rows,
    drawn_rows,
    sample_lines,
    sample_parquet,
    sha256_of,
)
from scorematching.tables.size import check_memory
from scorematching.tables.text import (
    CLOSE_QUOTES,
    NAMES,
    Dialect,
    check_lines,
    decode,
    lines_of,
    perhaps_thousands,
    sniff,
)

SUFFIXES = (".csv", ".tsv", ".txt", ".data", ".parquet", ".npy")
"""Of the files that can be read."""

DECIMAL_COMMA = "decimal comma: 1,5 is one and a half"
"""The note on a text file that has them."""

NO_NAMES = "no line of names: columns are numbered from 1"
"""The note on a text file that has none."""

_NPY = b"\x93NUMPY"
_TOY_SEED = 0

_ADVICE = (
    "take a random sample of its rows (fit has --max-rows and --max-memory), a file with fewer "
    "columns, or train a network on all rows with scorematching.training.open_stream"
)


@dataclass(frozen=True)
class Loaded:
    """A table and where it came from.

    Attributes:
        frame: a pandas data frame, as it is in the file.
        name: the file's path, or the name of a data set.
        sha256: of the file's bytes, or of the data set's numbers.
        notes: how the file was read, such as its delimiter.
        rows: numbers of the rows in the file, counted from zero; None for all.
        total: rows of the file, where a sample was read.
    """

    frame: Any
    name: str
    sha256: str
    notes: tuple[str, ...] = ()
    rows: Rows | None = None
    total: int | None = None


def read(
    source: str | Path, data_dir: str | None = None, max_rows: int | None = None, seed: int = 0
) -> Loaded:
    """Read a table, or a sample of its rows.

    Args:
        source: a csv, tsv, txt, parquet or npy file, or the name of a data set. Delimiter,
            encoding, decimal mark and header of text files are found out.
        data_dir: where files of data sets are looked for.
        max_rows: of a table with more, as many are drawn at random, all with the same chance; None
            reads all.
        seed: of the draw.

    Returns:
        The table.

    Raises:
        FileNotFoundError: if there is neither a file nor a data set of that name.
        ImportError: if pandas is not installed.
        ValueError: if the file is empty, or is no table; the message names the line. Or, before
            anything is read, if it does not fit into memory.

    Example:
        >>> read("redwine").frame.shape
        (1599, 11)
    """
    path = Path(source).expanduser()
    if path.is_file():
        return _read_file(path, max_rows, seed)
    if str(source) in datasets.names():
        return _some(_read_dataset(str(source), data_dir), max_rows, seed)
    raise FileNotFoundError(f"there is no file {str(source)!r}{_hint(path)}")


def labels_of(loaded: Loaded) -> Any:
    """Names of the rows of a file that its numbers do not keep, as a data frame of text.

    They are the index of a parquet file, and columns of a text file with leading zeros (00123),
    with more digits than double precision has in a column with missing values, or with text that
    is read as missing, such as NA for Namibia.

    Args:
        loaded: from `read`, all rows.
    """
    pandas, path = import_extra("pandas", "tables"), Path(loaded.name).expanduser()
    suffix = path.suffix.lower() if path.is_file() else ""
    if suffix == ".parquet":
        index = pandas.read_parquet(path, columns=[]).index
        levels = range(0 if _is_count(index) else index.nlevels)
        names = {str(index.names[i] or f"index {i + 1}"): i for i in levels}
        kept = {name: i for name, i in names.items() if name not in loaded.frame}
        return pandas.DataFrame({name: index.get_level_values(i) for name, i in kept.items()})
    if suffix in ("", ".npy"):
        return pandas.DataFrame(index=loaded.frame.index)
    text, encoding = decode(path.read_bytes(), loaded.name)
    fields = _parse(text, _dialect(text, encoding, path), dtype=str, keep_default_na=False)
    labels = fields[[c for c in fields if _is_label(fields[c], loaded.frame[c])]]
    return labels.where(labels != "")


def _is_count(index: Any) -> bool:
    """Whether an index has no name and counts the rows, as that of a table without one does."""
    return index.name is None and index.nlevels == 1 and index.dtype.kind == "i"


def _is_label(fields: Any, values: Any) -> bool:
    """Whether fields have lost digits as numbers, or words as missing values."""
    kind = values.dtype.kind
    if kind == "O":
        return bool((values.isna() & (fields != "")).any())
    long = r"|\d{17,}" if kind == "f" else ""
    return kind in "if" and bool(fields.str.fullmatch(rf"\s*(0\d+{long})\s*", na=False).any())


def _hint(path: Path) -> str:
    """What could have been meant."""
    if path.is_dir():
        return ", which is a folder; give a file in it"
    if path.is_symlink() and not path.exists():
        return ", which is a link to nothing; give the file itself"
    if str(path) == "-" or path.exists():
        return "; tables are read from files, not from pipes or devices: save it as one first"
    files = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(str(path), [*datasets.names(), *files], n=1, cutoff=0.7)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f" and no data set of that name{meant or '; `scorematching datasets` lists them'}"


def _read_file(path: Path, max_rows: int | None, seed: int) -> Loaded:
    readers = {".parquet": _read_parquet, ".npy": _read_npy}
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path} must be one of {', '.join(SUFFIXES)}, got {suffix or 'no suffix'}; save the "
            "table as csv"
        )
    check_memory(path, max_rows, _ADVICE)
    if max_rows is not None and suffix != ".npy":
        return _sampled(path, max_rows, seed)
    content = path.read_bytes()
    frame, notes = readers.get(suffix, _read_text)(content, path)
    if not len(frame):
        raise ValueError(f"{path} has no rows; nothing can be fitted")
    loaded = Loaded(frame, str(path), hashlib.sha256(content).hexdigest(), notes)
    return _some(loaded, max_rows, seed)


def _sampled(path: Path, max_rows: int, seed: int) -> Loaded:
    """A sample of the rows of a file, of which never more than a part is in memory."""
    import_extra("pandas", "tables")
    if path.suffix.lower() == ".parquet":
        frame, rows, total = sample_parquet(path, max_rows, seed)
        frame, notes = _parquet_columns(frame, path)
    else:
        content, rows, total = sample_lines(path, max_rows, seed)
        frame, notes = _read_text(content, path)
        if len(frame) > len(rows):  # the first line has no names
            rows, total = np.append(0, rows + 1), total + 1
        if len(rows) > max_rows:  # it belongs to no sample
            frame, rows = frame.iloc[1:], rows[1:]
    if not len(frame):
        raise ValueError(f"{path} has no rows; nothing can be fitted")
    frame = frame.reset_index(drop=True)
    whole = len(rows) == total
    return Loaded(
        frame, str(path), sha256_of(path), notes, None if whole else rows, None if whole else total
    )


def _some(loaded: Loaded, max_rows: int | None, seed: int) -> Loaded:
    """A sample of the rows of a table in memory."""
    total = len(loaded.frame)
    if max_rows is None or max_rows >= total:
        return loaded
    rows = drawn_rows(total, max_rows, seed)
    frame = loaded.frame.iloc[rows].reset_index(drop=True)
    return replace(loaded, frame=frame, rows=rows, total=total)


def _read_text(content: bytes, path: Path) -> tuple[Any, tuple[str, ...]]:
    text, encoding = decode(content, str(path))
    try:
        dialect = _dialect(text, encoding, path)
        check_lines(text, dialect, str(path))
        frame = _parse(text, dialect)
    except (csv.Error, import_extra("pandas", "tables").errors.ParserError) as error:
        raise ValueError(f"{path}: {str(error).strip()}; {CLOSE_QUOTES}") from error
    if dialect.header:
        _refuse_repeated(_header(text, dialect.delimiter), path)
    notes = [f"separated by {NAMES[dialect.delimiter]}, {encoding}"]
    notes += [] if dialect.header else [NO_NAMES]
    doubt = perhaps_row(list(frame.columns)) if dialect.header else perhaps_names(frame)
    doubt = doubt or (None if dialect.header else perhaps_decimals(lines_of(text)))
    notes += [doubt] if doubt else []
    notes += [DECIMAL_COMMA] if dialect.decimal == "," else []
    for i, number in perhaps_thousands(text, dialect).items():
        notes.append(
            f"{frame.columns[i]}: {number} is read as a decimal number; if its point separates "
            f"thousands, write {number.replace('.', '')}"
        )
    return frame, tuple(notes)


def _dialect(text: str, encoding: str, path: Path) -> Dialect:
    return sniff(text, encoding, "\t" if path.suffix.lower() == ".tsv" else None)


def _parse(text: str, dialect: Dialect, **options: Any) -> Any:
    """The table of a text, with more options of pandas."""
    frame = import_extra("pandas", "tables").read_csv(
        io.StringIO(text),
        sep=dialect.delimiter,
        header=0 if dialect.header else None,
        decimal=dialect.decimal,
        index_col=False,
        skipinitialspace=True,
        low_memory=False,
        **options,
    )
    frame.columns = _names(frame.columns, dialect.header)
    return frame


def _names(columns: Any, header: bool) -> list[str]:
    """Names of columns; those of pandas for a column without a name are replaced."""
    if not header:
        return _numbered(len(columns))
    nameless = "Unnamed: "
    names = ["" if str(c).startswith(nameless) else str(c).strip() for c in columns]
    return [name or _free(f"column {i}", names) for i, name in enumerate(names, 1)]


def _free(name: str, taken: Sequence[str]) -> str:
    """A name that no other column has."""
    return name if name not in taken else _free(f"{name}, without a name", taken)


def _header(text: str, delimiter: str) -> list[str]:
    """The fields of the line of names."""
    lines = (line for line in lines_of(text) if line.strip())
    return next(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))


def _refuse_repeated(names: Sequence[str], path: Path) -> None:
    counts = Counter(name.strip() for name in names if name.strip())
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(
            f"{path} must have columns of different names, got {repeated[0]!r} "
            f"{counts[repeated[0]]} times; rename one of them"
        )


def _numbered(count: int) -> list[str]:
    return [f"column {i}" for i in range(1, count + 1)]


def _read_parquet(content: bytes, path: Path) -> tuple[Any, tuple[str, ...]]:
    pandas = import_extra("pandas", "tables")
    import_extra("pyarrow", "tables")
    try:
        frame = pandas.read_parquet(io.BytesIO(content))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} must be a parquet file, got: {reason}; write it again") from error
    return _parquet_columns(frame, path)


def _parquet_columns(frame: Any, path: Path) -> tuple[Any, tuple[str, ...]]:
    """A table without its index, and a note if that is more than a count of the rows."""
    frame.columns = [str(c) for c in frame.columns]
    _refuse_repeated(list(frame.columns), path)
    names = ", ".join(str(name or "without a name") for name in frame.index.names)
    note = f"index ({names}): left out; reset_index() of pandas turns it into a column"
    return frame.reset_index(drop=True), ("parquet", *([] if _is_count(frame.index) else [note]))


def _read_npy(content: bytes, path: Path) -> tuple[Any, tuple[str, ...]]:
    pandas = import_extra("pandas", "tables")
    try:
        if not content.startswith(_NPY):  # numpy would advise to unpickle it
            raise ValueError("a file of another format")
        values = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, SyntaxError, TokenError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} must be an array of numbers in npy format, got: {reason}; write it with "
            "numpy.save"
        ) from error
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not np.issubdtype(values.dtype, np.number):
        raise ValueError(
            f"{path} must be a table of numbers, shape (rows, columns), got shape {values.shape} "
            f"of {values.dtype}; reshape it first, for images to (N, height * width)"
        )
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    return pandas.DataFrame(native, columns=_numbered(values.shape[1])), ("npy",)


def _read_dataset(name: str, data_dir: str | None) -> Loaded:
    pandas = import_extra("pandas", "tables")
    if name in datasets.registry.SOURCES:
        data = datasets.load(name, data_dir)
    else:
        data = datasets.load(name, generator=torch.Generator().manual_seed(_TOY_SEED))
    if data.x.ndim != 2:
        raise ValueError(
            f"{name} must be a table, got images {tuple(data.x.shape[1:])}; `python -m "
            "reproduction` in a clone has models for images"
        )
    values = data.x.numpy()
    frame = pandas.DataFrame(values, columns=list(data.columns) or _numbered(values.shape[1]))
    notes = (f"data set of the package; {data.citation}",)
    return Loaded(frame, name, hashlib.sha256(values.tobytes()).hexdigest(), notes)

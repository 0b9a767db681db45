"""Files that hold something else are refused with their name and what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scorematching.training import open_stream
from tests.training.streams.files import write_npy, write_parquet

TEXTS: dict[str, tuple[bytes, str]] = {
    "words": (b"a,b\n1,2\nx,3\n", "2 numbers per line.*line 2 or after.*'x'"),
    "ragged": (b"a,b\n1,2\n1,2,3\n", "Expected 2 columns, got 3"),
    "short": (b"a,b\n1,2\n1\n", "Expected 2 columns, got 1"),
    "semicolons": (b"a;b\n1;2\n", "pass delimiter=';'"),
    "tabs": (b"1\t2\n1\t2\n", r"pass delimiter='\\t'"),
    "latin": ("größe,b\n1,2\n".encode("latin-1"), "UTF-8"),
    "utf16": ("a,b\n1,2\n".encode("utf-16"), "UTF-8"),
    "empty": (b"", "must begin with a line"),
    "only names": (b"a,b\n", "must hold rows, got none"),
    "zeros": (b"\0\0\0\0", "must begin with a line"),
    "same names": (b"a,a\n1,2\n", "different names"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "UTF-8"),
    "decimal commas": (b"a;b\n1,5;2,5\n", "pass delimiter=';'"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_no_table(name: str, tmp_path: Path) -> None:
    content, message = TEXTS[name]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        open_stream(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["a,b\n1,2\n3,\n", "a,b\n1,2\n3,nan\n", "a,b\n1,2\n3,1e300\n"])
def test_missing_numbers_are_named_by_row_and_column(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"got (nan|1e\+300) in row 1, column 'b'"):
        list(open_stream(path).batches(1, seed=0))


def test_text_of_many_kinds(tmp_path: Path) -> None:
    """With names or without, with a byte-order mark, Windows line ends, no last line break."""
    for i, content in enumerate(
        [b"a,b\n1,2\n3,4\n", b"1,2\n3,4", "\ufeffa,b\r\n1,2\r\n3,4\r\n".encode(), b"1,2\n\n3,4\n\n"]
    ):
        path = tmp_path / f"{i}.csv"
        path.write_bytes(content)
        found = open_stream(path)
        rows = [batch[0].tolist() for batch in found.batches(1, seed=0)]
        assert sorted(rows) == [[1, 2], [3, 4]]
        assert found.columns == (("a", "b") if i in (0, 2) else ("0", "1"))


@pytest.mark.parametrize("kind", ["npy", "parquet"])
@pytest.mark.parametrize("damage", ["half", "nothing", "noise"])
def test_damaged_files(kind: str, damage: str, tmp_path: Path) -> None:
    write = write_npy if kind == "npy" else write_parquet
    path = write(tmp_path / "x", np.random.default_rng(0).normal(size=(100, 3)))
    content = path.read_bytes()
    worse = {"half": content[: len(content) // 2], "nothing": b"", "noise": b"\x93NUMPY\1\0" * 9}
    path.write_bytes(worse[damage])
    with pytest.raises(ValueError, match=re.escape(str(path))):
        list(open_stream(path).batches(10, seed=0))


def test_arrays_of_other_things(tmp_path: Path) -> None:
    for i, x in enumerate(
        [
            np.array(["a"]),
            np.array([1j]),
            np.array([object()]),
            np.array(3.0),
            np.asfortranarray(np.ones((3, 2))),
            np.zeros(2, dtype=[("a", "f4")]),
        ]
    ):
        path = tmp_path / f"{i}.npy"
        np.save(path, x, allow_pickle=True)
        with pytest.raises(ValueError, match=r"must (hold real numbers|be an array of numbers)"):
            open_stream(path)


def test_columns_of_words(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1, 2], "name": ["x", "y"]}), path)
    with pytest.raises(ValueError, match="columns must hold numbers, got 'name' of type string"):
        open_stream(path)
    assert open_stream(path, columns=["a"]).event == (1,)


def test_names_and_arguments(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npy"):
        open_stream(tmp_path / "nowhere.npy")
    (tmp_path / "x.zip").touch()
    with pytest.raises(ValueError, match=r"must end in \.npy, \.csv"):
        open_stream(tmp_path / "x.zip")
    path = write_npy(tmp_path / "x", np.ones((3, 2)))
    with pytest.raises(ValueError, match="columns must be left out"):
        open_stream(path, columns=["a"])
    with pytest.raises(ValueError, match="delimiter must be one character"):
        text = tmp_path / "x.csv"
        text.touch()
        open_stream(text, delimiter=", ")


def test_memory_that_holds_no_block(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": np.zeros(100_000)}), path)
    with pytest.raises(ValueError, match=r"max_memory must hold the largest block .*row groups"):
        open_stream(path, max_memory=1 << 20)
    assert open_stream(path, max_memory=16 << 20).blocks_per_window == 1


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "x", np.ones((300, 2)))
    stream = open_stream(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="must not change while it is read"):
        list(stream.batches(10, seed=0))


@pytest.mark.parametrize("text", ["a,b\n1,2\n3,\n", "a,b\n1,2\n3,inf\n"])
def test_missing_numbers_in_text_are_found_before_training(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"got (nan|inf) in row 1, column 'b'"):
        open_stream(path)


@pytest.mark.parametrize("first", [",2", "NA,2.5", "1, ?"])
def test_a_first_row_with_missing_values_is_no_line_of_names(first: str, tmp_path: Path) -> None:
    """It was lost: the columns were called "NA" and "2.5"."""
    path = tmp_path / "table.csv"
    path.write_text(f"{first}\n1,2\n")
    with pytest.raises(ValueError, match="numbers with missing values"):
        open_stream(path)
    path.write_text("id,2019\n1,2\n")
    assert open_stream(path).columns == ("id", "2019")


@pytest.mark.parametrize("names", ["0,1,2", "2001,2002,2003", "a,b,c"])
def test_names_that_are_numbers_are_no_row(names: str, tmp_path: Path) -> None:
    """Pandas writes 0, 1, 2 for columns without names, which was taken as a row."""
    path = tmp_path / "table.csv"
    path.write_text(f"{names}\n1,2.5,3\n2,4.5,6\n")
    stream = open_stream(path)
    assert stream.columns == tuple(names.split(","))
    assert sorted(next(stream.batches(2, seed=0))[:, 1].tolist()) == [2.5, 4.5]


def test_years_in_all_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("2001,2002\n1999,2004\n")
    assert len(open_stream(path)) == 2


@pytest.mark.parametrize("names", [",a,b", ",0,1"])
def test_the_index_of_pandas_is_no_column_of_text(names: str, tmp_path: Path) -> None:
    """It was another coordinate of the points."""
    path = tmp_path / "table.csv"
    path.write_text(f"{names}\n0,1.5,3\n1,2.5,6\n")
    with pytest.raises(ValueError, match=r"got none for column 1, as pandas .* columns="):
        open_stream(path)
    assert open_stream(path, columns=names.split(",")[1:]).event == (2,)


def test_the_index_of_pandas_is_no_column_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": 4.0}, index=[7, 3, 5]).to_parquet(path)
    assert "__index_level_0__" in pq.read_schema(path).names
    assert open_stream(path).columns == ("a", "b")

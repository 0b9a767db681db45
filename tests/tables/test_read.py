"""Files as people have them: each is read, or refused in one line that says where to look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scorematching.tables import prepare, read
from scorematching.tables.kinds import numbers_of
from scorematching.tables.read import labels_of
from scorematching.tables.text import sniff

FRAME = pd.DataFrame({"a": [1.5, -2.0, 3.25], "größe": [10, 20, 30], "c": [0.1, 0.2, -0.3]})


@pytest.mark.parametrize(
    ("name", "options", "note"),
    [
        ("t.csv", {}, "separated by comma, utf-8"),
        ("t.csv", {"sep": ";"}, "separated by semicolon, utf-8"),
        ("t.csv", {"sep": ";", "decimal": ","}, "decimal comma: 1,5 is one and a half"),
        ("t.csv", {"sep": "|"}, "separated by bar, utf-8"),
        ("t.csv", {"sep": "|", "decimal": ","}, "decimal comma: 1,5 is one and a half"),
        ("t.txt", {"sep": "\t", "decimal": ","}, "decimal comma: 1,5 is one and a half"),
        ("t.txt", {"sep": " "}, "separated by space, utf-8"),
        ("t.tsv", {"sep": "\t"}, "separated by tab, utf-8"),
        ("t.csv", {"encoding": "latin-1"}, "separated by comma, cp1252"),
        ("t.csv", {"encoding": "utf-16"}, "separated by comma, utf-16"),
        ("t.csv", {"encoding": "utf-8-sig"}, "separated by comma, utf-8"),
    ],
)
def test_dialects(tmp_path: Path, name: str, options: dict[str, str], note: str) -> None:
    FRAME.to_csv(tmp_path / name, index=False, **options)
    loaded = read(tmp_path / name)
    pd.testing.assert_frame_equal(loaded.frame, FRAME, check_dtype=False)
    assert note in loaded.notes


def test_other_formats(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read(tmp_path / "t.parquet").frame, FRAME)
    np.save(tmp_path / "t.npy", FRAME.to_numpy())
    loaded = read(tmp_path / "t.npy").frame
    assert list(loaded) == ["column 1", "column 2", "column 3"]
    assert np.array_equal(loaded.to_numpy(), FRAME.to_numpy())


@pytest.mark.parametrize("max_rows", [None, 2])
def test_an_index_in_a_parquet_file_is_said_to_be_left_out(
    tmp_path: Path, max_rows: int | None
) -> None:
    path = tmp_path / "t.parquet"
    FRAME.set_axis(pd.Index(["x", "y", "z"], name="patient")).to_parquet(path)
    loaded = read(path, max_rows=max_rows)
    assert list(loaded.frame) == list(FRAME) and "index (patient): left out" in loaded.notes[1]
    FRAME[::-1].to_parquet(path)
    assert read(path, max_rows=max_rows).notes == ("parquet",)


def test_names_of_rows_are_kept_as_written(tmp_path: Path) -> None:
    path, long = tmp_path / "t.csv", "123456789012345678"
    path.write_text(f"id;zip;long;hour;x\n1;01234;{long};7;0,5\n2;00007;;8;1,5\n")
    labels = labels_of(read(path))
    assert list(labels) == ["zip", "long"] and labels["zip"].tolist() == ["01234", "00007"]
    assert labels["long"].tolist()[0] == long
    path.write_text("country,note,gone,x\nNA,,NA,0.5\nDE,ok,,NA\n")  # Namibia
    labels = labels_of(read(path))
    assert list(labels) == ["country"] and labels["country"].tolist() == ["NA", "DE"]
    path = tmp_path / "t.parquet"
    FRAME.set_axis([["x", "y", "z"], [1, 2, 3]]).to_parquet(path)
    assert labels_of(read(path)).shape == (3, 2)
    FRAME.set_axis(pd.Index(["x", "y", "z"], name="a")).to_parquet(path)
    assert not list(labels_of(read(path)))  # a column has that name
    for source in (tmp_path / "t.npy", "redwine"):
        np.save(tmp_path / "t.npy", FRAME.to_numpy())
        assert not list(labels_of(read(source)))


def test_header_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    FRAME.to_csv(path, header=False, index=False)
    assert len(read(path).frame) == 3 and "column 1" in read(path).frame
    pd.DataFrame(FRAME.to_numpy()).to_csv(path, index=False)  # names 0, 1, 2
    assert len(read(path).frame) == 3 and list(read(path).frame) == ["0", "1", "2"]
    FRAME.to_csv(path)  # with an index, which has no name
    assert list(read(path).frame) == ["column 1", *FRAME]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_first_rows_with_decimal_commas_are_rows(tmp_path: Path, mark: str) -> None:
    """They were taken as names, or split at their commas: a row was lost without a word."""
    x = pd.DataFrame([[1.5, -2e-7], [0.25, 3.5], [7.5, 0.5]])
    x.to_csv(tmp_path / "t.txt", header=False, index=False, sep=mark, decimal=",")
    loaded = read(tmp_path / "t.txt")
    assert np.array_equal(loaded.frame.to_numpy(), x.to_numpy())
    assert list(loaded.frame) == ["column 1", "column 2"]


@pytest.mark.parametrize("first", ["NA,2.5,3.5", "1.5,,3.5", "1.5,2.5,nan"])
def test_first_rows_with_missing_values_are_rows(tmp_path: Path, first: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{first}\n4,5,6\n")
    assert len(read(path).frame) == 2 and int(read(path).frame.isna().sum().sum()) == 1
    path.write_text(",400,401\n1,4.5,5.5\n2,6.5,7.5\n")  # wavelengths beside an index
    assert list(read(path).frame) == ["column 1", "400", "401"]


def test_only_ends_of_lines_end_lines(tmp_path: Path) -> None:
    """Programs for offices write vertical tabs and the like inside of text."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\vy\n2,x\u2028y\n3,x\fy\n", encoding="utf-8")
    assert read(path).frame["a"].tolist() == [1, 2, 3]


def test_years_are_names_unless_rows_have_them_too(tmp_path: Path) -> None:
    """A line of names that is read as a row would be the farthest outlier of the table."""
    path = tmp_path / "t.csv"
    path.write_text("2019,2020,2021\n1.5,2.5,3.5\n4.5,5.5,6.5\n")
    assert list(read(path).frame) == ["2019", "2020", "2021"] and len(read(path).frame) == 2
    path.write_text("1999,2020\n1950,1960\n1901,1980\n")  # years of birth and death
    assert len(read(path).frame) == 3
    path.write_text("2021,2020\n1,2\n3,4\n")
    assert len(read(path).frame) == 3


def test_columns_without_a_name_get_one_that_is_free(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("column 2,\n1,2\n3,4\n")
    assert list(read(tmp_path / "t.csv").frame) == ["column 2", "column 2, without a name"]


def test_quoted_text_keeps_its_commas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('name,x\n"Doe, Jane",1\n"Roe, Jo",2\n')
    assert list(read(path).frame["name"]) == ["Doe, Jane", "Roe, Jo"]
    assert sniff("first name,x\nJo Ann Li,3\nAl Bo Cy,4\n", "utf-8").delimiter == ","


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n \n", "is empty"),
        ("t.csv", b"a,b\n", "a line of names and no rows"),
        ("t.csv", b"a,b,c\n1,2,3\n4,5\n", "line 3: 2 fields where the line of names has 3"),
        ("t.csv", b"My table\na,b\n1,2\n", "remove lines above the names of the columns"),
        ("t.csv", b"a,b\n1,5,6\n2,7,8\n", "give the column with the names of rows a name"),
        ("t.csv", b"3,4\n3,4,5\n", "line 2: 3 fields where the first line has 2"),
        ("t.csv", b"PK\x03\x04\0\0\0\0", "is not a text file"),
        ("t.parquet", b"a,b\n1,2\n", "must be a parquet file"),
        ("t.npy", b"a,b\n1,2\n", "npy format, got: a file of another format; write it with"),
        ("t.csv", b"# of 2024\na,b\n1,2\n", "remove lines of comments, such as '# of 2024'"),
        ("t.csv", b"sep=;\na;b\n1;2\n", "got 'sep=;', which is for Excel; remove that line"),
        ("t.csv", b'a,b\n1,x\n2,"y\n', "EOF inside string .* close the quotes"),
        ("t.csv", b'a,b\n1,"x\n2,y\n3,z"\n4,y\n', "line 2: a quote that ends 2 lines later"),
        ("t.csv", b'a,b\n1,"x\n' + b"2,y\n" * 40_000, "line 2: field larger than field limit"),
        ("t.csv", b"a,b\n1," + b"x" * 140_000 + b"\n", "field larger .* fields of very long text"),
        ("t.xlsx", b"PK", "got .xlsx"),
        ("t", b"a,b\n1,2\n", "got no suffix"),
    ],
)
def test_refusals(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refusal:
        read(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_text_of_several_lines_is_no_row_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('address,x\n"1 Main St, York\nUK, Europe\n",1\n"2 Side St",2\n')
    assert read(path).frame.shape == (2, 2)


def test_bytes_in_another_order_are_read(tmp_path: Path) -> None:
    """As FITS files and IDL have them; the error was one of pandas."""
    np.save(tmp_path / "t.npy", np.arange(4.0).reshape(2, 2).astype(">f8"))
    frame = read(tmp_path / "t.npy").frame
    assert frame.to_numpy().tolist() == [[0, 1], [2, 3]] and frame.sum().tolist() == [2, 4]


def test_objects_and_images_in_npy_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match=r"shape \(2, 3, 3\)"):
        read(tmp_path / "t.npy")
    np.save(tmp_path / "t.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="npy format"):
        read(tmp_path / "t.npy")


def test_missing_files_are_named_with_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "wines.csv").write_text("a\n1\n")
    with pytest.raises(FileNotFoundError, match=r"did you mean '.*wines.csv'"):
        read(tmp_path / "wine.csv")
    with pytest.raises(FileNotFoundError, match="did you mean 'redwine'"):
        read("redwin")
    with pytest.raises(FileNotFoundError, match="which is a folder"):
        read(tmp_path)


def test_data_sets_by_name() -> None:
    assert read("redwine").frame.shape == (1599, 11)
    assert read("banana").sha256 == read("banana").sha256  # drawn from the same seed


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (("487", "2.053", "12.345"), True),
        (("487", "NA", "-2.053"), True),
        (("487", "2.05", "12.345"), False),
        (("1487", "2.053", "12.345"), False),
        (("487.000", "2.053", "12.345"), False),
        (("487", "0.053", "12.345"), False),
    ],
)
def test_points_that_may_separate_thousands_are_named(
    tmp_path: Path, cells: tuple[str, ...], named: bool
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n" + "".join(f"1.5;{cell}\n" for cell in cells))
    found = [note for note in read(path).notes if "separates thousands" in note]
    number = next(cell for cell in cells if "." in cell)
    assert [note[: len(number) + 3] for note in found] == [f"b: {number}"] * named


def test_points_of_thousands_beside_decimal_commas(tmp_path: Path) -> None:
    """10.125 was read as ten and an eighth, and y was to be written with points."""
    path = tmp_path / "t.csv"
    path.write_text("pop;y\n" + "".join(f"{i}.125;1,0390{i}\n" for i in range(1, 10)))
    loaded = read(path)
    assert loaded.frame["y"].tolist() == [float(f"1.0390{i}") for i in range(1, 10)]
    with pytest.raises(ValueError, match=r"'1\.125' in row 1; write 1125 in place of it"):
        prepare(loaded)
    assert numbers_of(loaded.frame["pop"], comma=True).isna().all()


def test_true_and_false_beside_decimal_commas_and_missing_values(tmp_path: Path) -> None:
    """The rows were read by `fit`, and left empty by `score`."""
    path = tmp_path / "t.csv"
    path.write_text("y;flag\n1,5;True\n2,5;\n3,5;False\n")
    found = numbers_of(read(path).frame["flag"], comma=True).astype(float)
    np.testing.assert_array_equal(found, [1.0, np.nan, 0.0])


def named(texts: list[str], dates: bool = False) -> pd.DataFrame:
    """Rows with text, of which the first two have numbers in another order than the others."""
    numbers = np.random.default_rng(0).normal(5, 1, size=(len(texts), 3)).round(2)
    numbers[0] = [5.1, 3.5, 4.4]
    text = pd.date_range("2024-01-01", periods=len(texts)) if dates else texts
    return pd.DataFrame(numbers).assign(text=text)


@pytest.mark.parametrize("mark", [",", ";"])
@pytest.mark.parametrize(
    "table",
    [
        named(["Iris-setosa", "Iris-virginica"] * 20),  # as of the UCI repository
        named(["M", "F", "I", "M"] * 10)[["text", 0, 1, 2]],
        named([f"row {i}" for i in range(40)])[["text", 0, 1, 2]],
        named([""] * 40, dates=True)[["text", 0, 2]].sort_values(0, ascending=False),
        named(["?", "4.5", "2.5"] * 10)[["text", 0, 1, 2]],
        named(["M", "F"] * 9).assign(gap=[None, 1.5, None] * 6)[["gap", 0, 1, "text"]],
        named(["M", "F", "M"])[["text", 0, 1]].assign(gap=[0.5, None, None]),
    ],
)
def test_first_rows_with_text_are_rows(tmp_path: Path, table: pd.DataFrame, mark: str) -> None:
    """They were taken as names of columns: a row was lost, and columns were called 5.1 and 3.5."""
    path, decimal = tmp_path / "t.data", "," if mark == ";" else "."
    table.to_csv(path, header=False, index=False, sep=mark, decimal=decimal)
    loaded = read(path)
    assert loaded.frame.shape == table.shape and loaded.frame.columns[0] == "column 1"
    assert "no line of names: columns are numbered from 1" in loaded.notes


@pytest.mark.parametrize(
    ("line", "text", "note"),
    [
        ("sample,400,402,404", "s{}", False),
        ("country,2001,2002,2003", "{}", False),  # above numbers
        ("depth,0.5,1.5,2.5", "s{}", False),
        ("name,2.5,1.5,a", "s{}", True),  # above numbers
        ("s,30,20,10", "s{}", False),
        ("gene,1023,877,1201", "g{}", True),  # numbers of samples, above fractions
    ],
)
def test_names_of_columns_with_numbers(tmp_path: Path, line: str, text: str, note: bool) -> None:
    rows = np.random.default_rng(0).normal(5, 1, size=(30, 3)).round(2).astype(object).tolist()
    path = tmp_path / "t.csv"
    lines = [",".join(map(str, [text.format(i), *row])) for i, row in enumerate(rows)]
    path.write_text("\n".join([line, *lines]))
    loaded = read(path)
    assert list(loaded.frame) == line.split(",") and len(loaded.frame) == 30
    assert any("if it is a row, write a line of names above it" in n for n in loaded.notes) == note


@pytest.mark.parametrize(
    "row",
    [
        lambda i: (i + 1,),
        lambda i: (i + 1, i * 7919 % 97 / 10),
        lambda i: (30 + i * 37 % 23, 2500 + i * 7919 % 1997),  # age and income
        lambda i: (1 + i * i % 5, 1 + (i * i + 1) % 5, 1 + (i * i + 2) % 5),
        lambda i: (1950 + i * 7 % 40, 1990 + i * 11 % 30),
        lambda i: (5, i * 3 + 6, i * 4 + 9, i * i + 12, i * 5 + 20),
    ],
)
def test_first_rows_with_other_texts_are_rows(tmp_path: Path, row: Callable[[int], tuple]) -> None:
    """Their numbers are those of a row like the others, even where they happen to be in order."""
    path = tmp_path / "t.csv"
    path.write_text("".join(f"n{i},{','.join(map(str, row(i)))}\n" for i in range(30)))
    assert read(path).frame.shape == (30, 1 + len(row(0)))
    assert read(path).frame.iloc[0, 0] == "n0"


def test_names_and_rows_of_whole_numbers(tmp_path: Path) -> None:
    """Years name columns if they are consecutive; one year alone is a row, with a note."""
    path = tmp_path / "t.csv"
    rows = [f"t{i},{i * 7919 % 50000 + 100},{i * 5279 % 50000 + 100}" for i in range(30)]
    path.write_text("\n".join(["town,2011,2012", *rows]))
    assert list(read(path).frame) == ["town", "2011", "2012"] and len(read(path).notes) == 1
    path.write_text("\n".join(["town,2012", *(row.rpartition(",")[0] for row in rows)]))
    loaded = read(path)
    assert len(loaded.frame) == 31 and loaded.frame.iloc[0].tolist() == ["town", 2012]
    assert "the first line (town, 2012) looks like names" in str(loaded.notes)
    path.write_text("a,12,300\nb,1,2\nc,3,5\nd,2,3\n")  # far from all others
    assert len(read(path).frame) == 3 and "if it is a row" in str(read(path).notes)


@pytest.mark.parametrize(
    ("line", "note"), [("Oslo,-1.5", True), ("Oslo,12", True), ("town,2012", False), ("i,0", False)]
)
def test_a_row_that_may_be_names_is_noted(tmp_path: Path, line: str, note: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{line}\nRom,9.5\nBonn,4.5\n")
    said = f"the first line ({line.replace(',', ', ')}) is read as names of the columns"
    assert (said in str(read(path).notes)) == note


def test_numbers_with_decimal_commas_between_spaces(tmp_path: Path) -> None:
    """They were split at the commas: 0,25 -1,5 was 0, text and 5."""
    path, x = tmp_path / "t.txt", pd.DataFrame([[0.25, -1.5], [12.0, 3e-7], [-0.5, 2.25]])
    x.to_csv(path, header=False, index=False, sep=" ", decimal=",")
    assert read(path).frame.to_numpy().tolist() == x.to_numpy().tolist()
    x.to_csv(path, index=False, header=["a", "b"], sep=" ", decimal=",")
    assert read(path).frame["b"].tolist() == x[1].tolist()
    for text in ("i,month,x\n1,2020 01,3\n2,2020 02,5\n", "i,at,x\n1,2020 12,3\n2,2020 11,5\n"):
        path.write_text(text)
        assert read(path).frame.shape == (2, 3)


def test_one_column_with_decimal_commas_is_noted(tmp_path: Path) -> None:
    """Without a line of names it is two columns of whole numbers."""
    path, x = tmp_path / "t.csv", np.random.default_rng(0).normal(size=60)
    for text, is_noted in (
        ("\n".join(f"{number:.3f}".replace(".", ",") for number in x), True),
        ("\n".join(f"{number:.3e}".replace(".", ",") for number in x), True),
        ("\n".join(f"{i},{i * i % 7}" for i in range(60)), False),
        ("\n".join(f"{i},{i * i % 7},{i:03d}" for i in range(60)), False),
    ):
        path.write_text(text)
        notes = read(path).notes
        assert any("if it is one number with a decimal comma" in n for n in notes) == is_noted


def spectra(columns: int, scale: float, steps: float) -> tuple[list[float], np.ndarray]:
    rows = scale * np.random.default_rng(0).random((30, columns))
    return [400 + round(steps * i, 1) for i in range(columns)], rows


@pytest.mark.parametrize("max_rows", [None, 25])
@pytest.mark.parametrize(
    ("columns", "scale", "steps"),
    [(3, 1.0, 2.0), (40, 1.0, 1.93), (40, -0.01, 1.93), (5, 800.0, 2.0), (40, 800.0, -1.93)],
)
def test_names_that_are_numbers_are_noted(
    tmp_path: Path, columns: int, scale: float, steps: float, max_rows: int | None
) -> None:
    """Wavelengths were a row of the data, without a word, and an outlier in every fit."""
    names, rows = spectra(columns, scale, steps)
    path, named = tmp_path / "t.csv", tmp_path / "named.csv"
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    pd.DataFrame(rows, columns=[f"x{name}" for name in names]).to_csv(named, index=False)
    said = prepare(read(path, max_rows=max_rows)).summary
    shown = ", ".join(f"{name:g}" for name in names[:3])
    assert f"- the first line ({shown}" in str(said) and "as in x400, and fit again" in str(said)
    loaded = read(named, max_rows=max_rows)
    assert "first line" not in str(loaded.notes) and loaded.frame.columns[0] == "x400.0"


@pytest.mark.parametrize("names", ["1023,877,1201,9", "1,2,3,4", "12345678,5,7,6"])
def test_whole_numbers_above_fractions_are_noted(tmp_path: Path, names: str) -> None:
    path = tmp_path / "t.csv"
    rows = np.random.default_rng(0).normal(size=(30, 4))
    np.savetxt(path, rows, delimiter=",", header=names, comments="", fmt="%.2f")
    note = f"the first line ({names.replace(',', ', ')}) looks like names of the columns"
    assert note in str(read(path).notes)


def test_first_rows_that_are_none_are_not_noted(tmp_path: Path) -> None:
    """A line of numbers is a row like the others, in order by chance or by what it measures."""
    g, path = np.random.default_rng(0), tmp_path / "t.csv"
    tables = [
        np.sort(g.normal(size=(40, 6)), axis=1),  # quantiles
        10.0 ** np.arange(4) + g.normal(size=(40, 4)),  # columns of different sizes
        np.exp(np.cumsum(g.random((40, 4)), axis=0)) * 10.0 ** np.arange(4),  # all grow
        np.add.outer(np.arange(40.0), np.arange(6)) ** 1.0,  # all rows have equal steps
        np.cumsum(g.random((40, 5)), axis=1),
        np.vstack([[0.0, 3.0, 1.0], g.normal(size=(40, 3))]),  # a start at time zero
        np.vstack([[5.0, 4.0, 5.0], g.normal(size=(40, 3))]),
        *(g.normal(size=(40, 3)) for _ in range(30)),
        *(g.integers(1, 8, size=(40, 5)) for _ in range(30)),
    ]
    for table in tables:
        np.savetxt(path, table, delimiter=",")
        notes = read(path).notes
        assert notes[1:] == ("no line of names: columns are numbered from 1",)

"""Samples of rows of a file: the rows they say they are, and refusals before anything is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from scorematching.tables import prepare, read, size
from scorematching.tables.sample import drawn_rows
from tests.statistics import assert_mean

FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 3)), columns=list("abc"))


def write(path: Path, frame: pd.DataFrame = FRAME) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path, row_group_size=64)
    elif path.suffix == ".npy":
        np.save(path, frame.to_numpy())
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet", "t.npy"])
def test_a_sample_is_the_rows_it_names(tmp_path: Path, name: str) -> None:
    """The same numbers as reading everything and choosing afterwards."""
    path = write(tmp_path / name)
    whole, some = read(path), read(path, max_rows=90, seed=3)
    assert some.rows is not None and len(some.rows) == len(some.frame) == 90
    assert some.total == 500 and some.sha256 == whole.sha256 and some.notes == whole.notes
    expected = whole.frame.iloc[some.rows].reset_index(drop=True)
    pd.testing.assert_frame_equal(some.frame, expected)
    assert len(np.unique(some.rows)) == 90
    assert not np.array_equal(some.rows, read(path, max_rows=90, seed=4).rows)
    pd.testing.assert_frame_equal(some.frame, read(path, max_rows=90, seed=3).frame)


def test_names_after_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    path.write_text("\n\n" + path.read_text())
    whole, some = read(path), read(path, max_rows=90, seed=3)
    assert some.rows is not None and some.total == 500
    pd.testing.assert_frame_equal(some.frame, whole.frame.iloc[some.rows].reset_index(drop=True))


@pytest.mark.parametrize("between", ["\n\n", "\r\n\r\n", "\r\r\n"])
def test_empty_lines_between_rows_do_not_count(tmp_path: Path, between: str) -> None:
    path = write(tmp_path / "t.csv")
    path.write_bytes(path.read_text().replace("\n", between).encode())
    whole, some = read(path), read(path, max_rows=90, seed=3)
    assert some.rows is not None and some.total == 500 and len(some.frame) == 90
    pd.testing.assert_frame_equal(some.frame, whole.frame.iloc[some.rows].reset_index(drop=True))
    assert read(path, max_rows=500).total is None


@pytest.mark.parametrize("max_rows", [3, 4, 5, 9])
def test_all_rows_of_a_file_without_names(tmp_path: Path, max_rows: int) -> None:
    """All five rows, where as many are asked for; the first of them was left out."""
    path = tmp_path / "t.csv"
    path.write_text("1.5,2\n2.5,3\n3.5,4\n4.5,5\n5.5,6\n")
    whole, some = read(path), read(path, max_rows=max_rows)
    rows = np.arange(5) if some.rows is None else some.rows
    assert len(rows) == min(max_rows, 5) and some.total == (5 if max_rows < 5 else None)
    pd.testing.assert_frame_equal(some.frame, whole.frame.iloc[rows].reset_index(drop=True))


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npy"])
def test_a_sample_of_all_rows_is_the_table(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    found = read(path, max_rows=500)
    pd.testing.assert_frame_equal(found.frame, read(path).frame)
    assert found.rows is None and found.total is None


def test_data_sets_are_sampled_too() -> None:
    found = read("redwine", max_rows=50)
    assert found.frame.shape == (50, 11) and found.total == 1599


def test_a_file_without_names(tmp_path: Path) -> None:
    """Its first line decides about names, and belongs to no sample."""
    FRAME.to_csv(tmp_path / "t.csv", index=False, header=False)
    found = read(tmp_path / "t.csv", max_rows=40)
    assert found.rows is not None and found.total == 500 and found.rows.min() >= 1
    np.testing.assert_allclose(found.frame.to_numpy(), FRAME.to_numpy()[found.rows])


def test_every_row_has_the_same_chance() -> None:
    """Of four rows two are drawn: each with probability 1/2, each pair with 1/6."""
    chosen = torch.zeros(4000, 4, dtype=torch.float64)
    for seed in range(len(chosen)):
        chosen[seed, drawn_rows(4, 2, seed).tolist()] = 1.0
    for row in range(4):
        assert_mean(chosen[:, row], 0.5, detect=0.08)
        assert_mean(chosen[:, row] * chosen[:, (row + 1) % 4], 1 / 6, detect=0.08)


def test_prepared_rows_are_those_of_the_file(tmp_path: Path) -> None:
    frame = FRAME.copy()
    frame.loc[::7, "b"] = np.nan
    path = write(tmp_path / "t.parquet", frame)
    table = prepare(read(path, max_rows=200), drop_missing=True)
    np.testing.assert_array_equal(frame.iloc[table.rows].to_numpy(), table.frame.to_numpy())
    assert "200 of 500 rows of the file, drawn at random" in str(table.summary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a,b\n1,"x\ny"\n' * 20, "a quote that does not end in the same line"),
        ("a,b\n1,2\n".encode("utf-16"), "got UTF-16"),
        ("a,b\r" + "1,2\r" * 60, "line 1: a carriage return alone"),
    ],
)
def test_lines_that_cannot_be_sampled(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        read(path, max_rows=39)


def no_bytes(path: Path) -> bytes:
    raise AssertionError(f"{path} was read")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npy"])
def test_large_tables_are_refused_before_they_are_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / name)
    monkeypatch.setattr(size, "available_memory", lambda: 10_000.0)
    monkeypatch.setattr(Path, "read_bytes", no_bytes)
    message = "must fit into memory, got .* in memory, where 0.0 MB are available; .*--max-rows"
    with pytest.raises(ValueError, match=message):
        read(path)
    with pytest.raises(ValueError, match="of which 400 rows do not fit either"):
        read(path, max_rows=400)


def test_a_sample_of_a_large_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet")
    monkeypatch.setattr(size, "available_memory", lambda: 20_000.0)
    assert len(read(path, max_rows=50).frame) == 50


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npy"])
def test_rows_within_a_limit(tmp_path: Path, name: str) -> None:
    """Half of the memory is for half of the rows, up to what the file itself takes."""
    path = write(tmp_path / name)
    need = size.size_of(path).need
    assert size.rows_within(path, need) is None
    half = size.rows_within(path, need // 2)
    assert half is not None and 230 <= half <= 290


def test_memory_that_there_is() -> None:
    assert 1e6 < size.available_memory() < 1e16


@pytest.mark.parametrize("bad", ["?", "", "inf", "1,5"])
def test_errors_name_rows_of_the_file(tmp_path: Path, bad: str) -> None:
    """They named rows of the sample, and what was to be corrected was right."""
    frame = FRAME.astype(object)
    frame.loc[299, "b"] = bad
    path = write(tmp_path / "t.csv", frame)
    seed = next(seed for seed in range(9) if 299 in drawn_rows(500, 200, seed))
    for loaded in (read(path), read(path, max_rows=200, seed=seed)):
        with pytest.raises(ValueError, match=r"\brow 300\b"):
            prepare(loaded)
    if not bad:
        kept = prepare(read(path, max_rows=200, seed=seed), drop_missing=True)
        assert len(kept.rows) == 199 and 299 not in kept.rows
        np.testing.assert_allclose(kept.frame, FRAME.iloc[kept.rows], rtol=1e-12)

"""From a table to a run folder: complete and repeatable, or nothing at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import scorematching as sm
from scorematching.cli import main
from scorematching.cli.options import bytes_of
from scorematching.runs import open_run

QUICK = ["--model", "mlp", "--max-minutes", "1e-7"]  # the Gaussian alone


def about(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


def test_folder_holds_everything(small_run: Path, small_table: Path) -> None:
    names = {path.name for path in small_run.iterdir()}
    assert names == {"run.json", "split.json", "model", "baselines", "log.jsonl", "report.html"}
    found = about(small_run)
    assert found["options"]["seed"] == 1 and found["versions"]["scorematching"] == sm.__version__
    methods = found["held_out"]["methods"]
    assert [m["name"] for m in methods] == ["this model", "Gaussian", "KDE", "mixture"]
    assert all(m["log_likelihood"]["count"] == m["loss"]["count"] for m in methods)
    roles = {c["name"]: c["role"] for c in found["data"]["columns"]}
    assert roles["<i>site</i>"] == "text" and roles["unit"] == "constant"
    assert [name for name, width in found["width"].items() if width > 0] == ["tenths"]
    assert "small.csv" in (small_run / "model" / "README.md").read_text()


def test_model_loads_and_has_the_columns_of_the_table(small_run: Path) -> None:
    model = sm.load(small_run / "model")
    assert list(model.feature_names_in_) == ["a", "b", "unit", "tenths"]
    assert model.sample(3, random_state=0)["unit"].tolist() == [7.0] * 3


def test_copies_of_a_row_are_on_one_side(small_run: Path, small_table: Path) -> None:
    table = pd.read_csv(small_table)
    held = open_run(small_run).rows
    rest = table.drop(index=held)
    assert 20 <= len(held) <= 40 and len(rest) + len(held) == len(table)
    assert rest.merge(table.iloc[held]).empty


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages take seconds, and have tests of their own."""
    monkeypatch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)


@pytest.mark.usefixtures("no_report")
def test_a_table_in_the_folder_that_is_replaced_is_kept(
    small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was deleted with the old run."""
    out, table = tmp_path / "run", tmp_path / "run" / "tables" / "t.csv"
    assert main(["fit", "banana", "--out", str(out), *QUICK]) == 0
    table.parent.mkdir()
    shutil.copy(small_table, table)
    fit = ["fit", str(table), *QUICK, "--overwrite", "--out"]
    assert main([*fit, str(out)]) == 1
    said = "run must hold nothing but a run to be replaced, got tables/t.csv beside it; move"
    assert said in capsys.readouterr().err
    assert table.read_text() == small_table.read_text()
    assert about(out)["data"]["source"] == "banana"
    assert main([*fit, str(tmp_path / "other")]) == 0
    assert main([*fit, str(tmp_path / "other")]) == 0


@pytest.mark.usefixtures("no_report")
def test_files_that_users_put_into_a_run_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were deleted with the old run."""
    out = tmp_path / "run"
    assert main(["fit", "banana", "--out", str(out), *QUICK]) == 0
    (out / ".DS_Store").write_text("of a desktop")
    (out / "report.html").write_text("written as the last part of a fit")
    again = ["fit", "banana", "--out", str(out), *QUICK, "--overwrite"]
    assert main(again) == 0
    assert main(["sample", str(out), "5", "--out", str(out / "new.csv")]) == 0
    (out / "model" / "notes.txt").write_text("precious")
    assert main(again) == 1
    assert "got model/notes.txt, new.csv beside it; move" in capsys.readouterr().err
    assert (out / "model" / "notes.txt").read_text() == "precious"
    assert len((out / "new.csv").read_text().splitlines()) == 6


@pytest.mark.usefixtures("no_report")
def test_recorded_command_gives_the_same_digits(small_run: Path, tmp_path: Path) -> None:
    command = about(small_run)["command"]
    assert command[:2] == ["scorematching", "fit"]
    again = [*command[1:], "--out", str(tmp_path / "again")]
    assert main(again) == 0
    assert about(tmp_path / "again")["held_out"] == about(small_run)["held_out"]


@pytest.mark.usefixtures("no_report")
def test_existing_folders_are_refused_and_replaced(
    small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    for more in ([], ["--overwrite"]):
        assert main(["fit", str(small_table), "--out", str(out), *QUICK, *more]) == 1
        assert (out / "thesis.tex").read_text() == "precious"
    shutil.rmtree(out)
    assert main(["fit", str(small_table), "--out", str(out), *QUICK]) == 0
    assert main(["fit", str(small_table), "--out", str(out), *QUICK]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["fit", "banana", "--out", str(out), *QUICK, "--overwrite"]) == 0
    assert about(out)["data"]["source"] == "banana"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are Unicode there")
def test_a_file_name_in_another_encoding_does_not_cost_the_fit(
    small_table: Path, tmp_path: Path
) -> None:
    table = tmp_path / os.fsdecode(b"gr\xfc.csv")
    shutil.copy(small_table, table)
    out = tmp_path / "run"
    assert main(["fit", str(table), "--out", str(out), *QUICK]) == 0
    assert b"gr\\udcfc.csv" in (out / "model" / "README.md").read_bytes()
    assert b"gr\\udcfc.csv" in (out / "report.html").read_bytes()
    assert sm.load(out / "model").n_features_in_ == 4


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*arguments: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("place", "error", "status"),
    [
        ("write_run", RuntimeError("disk full"), 1),
        ("fit_table", ValueError("no"), 1),
        ("write_report", KeyboardInterrupt(), 130),
    ],
)
def test_nothing_is_left_of_a_fit_that_fails(
    place: str,
    error: BaseException,
    status: int,
    small_table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"scorematching.cli.fit.{place}", failing(error))
    assert main(["fit", str(small_table), "--out", str(tmp_path / "run"), *QUICK]) == status
    assert not list(tmp_path.iterdir())


def test_a_report_that_fails_does_not_cost_the_fit(
    small_table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("scorematching.cli.fit.write_report", failing(MemoryError("too large")))
    assert main(["fit", str(small_table), "--out", str(tmp_path / "run"), *QUICK]) == 1
    error = capsys.readouterr().err
    assert "MemoryError: too large" in error and "scorematching report" in error
    assert open_run(tmp_path / "run").held_out.rows > 0


def test_fit_works_without_the_extra_of_the_report(
    small_table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert main(["fit", str(small_table), "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert 'pip install "scorematching[report]"' in capsys.readouterr().out
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.usefixtures("no_report")
def test_time_is_honoured_and_baselines_that_are_better_are_named(
    small_run: Path, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(small_table), "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert about(tmp_path / "run")["model"]["weights"] == {"gaussian": 1.0}
    shown = capsys.readouterr().out
    assert "Gaussian: no clear difference" in shown  # it is the model itself
    x = np.random.default_rng(0).normal(size=(200, 1))
    pd.DataFrame({"a": np.where(x[:, 0] > 0, x[:, 0] + 9, x[:, 0] - 9)}).to_csv(
        tmp_path / "two.csv", index=False
    )
    assert main(["fit", str(tmp_path / "two.csv"), "--out", str(tmp_path / "2"), *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "mixture: better than this model, by " in shown


def test_score_network_and_its_end_in_time(
    small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    quick = ["--model", "score", "--max-minutes", "1e-7"]
    assert main(["fit", str(small_table), "--out", str(out), *quick]) == 0
    found = about(out)
    assert found["kind"] == "score" and found["held_out"]["methods"][0]["log_likelihood"] is None
    rows = pd.DataFrame(np.zeros((2, 3)), columns=["a", "b", "tenths"])
    assert sm.load(out / "model").grad_log_density(rows).shape == (2, 3)
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    cut = "training ended at step 50 of at most 2000, because the time limit of 4.8e-06 s was over"
    assert f"warning: {cut}" in capsys.readouterr().out
    assert cut in (out / "report.html").read_text(encoding="utf-8")
    assert main(["fit", str(small_table), "--out", str(tmp_path / "b"), "--objective", "sm",
                 *quick]) == 1  # fmt: skip


@pytest.fixture
def large_table(tmp_path: Path) -> Path:
    """A parquet file of 3,000 rows in twelve row groups."""
    x = np.random.default_rng(0).normal(size=(3000, 2))
    path = tmp_path / "large.parquet"
    pd.DataFrame(x, columns=["a", "b"]).to_parquet(path, row_group_size=256)
    return path


@pytest.mark.usefixtures("no_report")
def test_a_sample_of_a_large_table_is_fitted_and_found_again(
    large_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`evaluate` reads the same sample again, and gives the numbers of the fit."""
    out = tmp_path / "run"
    limit = ["--max-memory", "0.05 MB"]
    assert main(["fit", str(large_table), "--out", str(out), *QUICK, *limit]) == 0
    assert "284 of 3,000 rows of the file, drawn at random" in capsys.readouterr().out
    found = about(out)
    assert found["options"]["max_rows"] == found["data"]["rows"] == 284
    held = open_run(out).rows
    assert 40 <= len(held) <= 60 and held.max() > 284
    assert main(["evaluate", str(out)]) == 0
    printed = capsys.readouterr().out
    best = found["held_out"]["methods"][0]["log_likelihood"]["mean"]
    assert f"{best:.2f}" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-memory", "much"], "--max-memory must be a number of bytes such as 500MB"),
        (["--max-memory", "2KB"], "--max-memory must have room for 20 rows"),
        (["--max-rows", "3"], "--max-rows"),
    ],
)
def test_limits_that_make_no_sense(
    large_table: Path,
    tmp_path: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fit", str(large_table), "--out", str(tmp_path / "run"), *options]) != 0
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["large.parquet"]


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("500MB", 500_000_000), ("2 GB", 2 * 10**9), ("1e9", 10**9), ("1.5k", 1500)],
)
def test_numbers_of_bytes(text: str, count: int) -> None:
    assert bytes_of(text, "--max-memory") == count

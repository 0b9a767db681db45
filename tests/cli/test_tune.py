"""``scorematching fit --tune``: every combination once, each with a folder of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from scorematching.cli import main
from scorematching.cli.tune import SOME_FAILED, run_fit


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of all fits, which are not done: their loss is their seed."""
    calls: list[dict[str, Any]] = []

    def pretend(settings: dict[str, Any]) -> dict[str, Any]:
        calls.append(settings)
        if settings.get("model") == "dkef" and settings["seed"] == "2":
            raise RuntimeError("no such table")
        loss = {"mean": float(settings["seed"]), "standard_error": 0.5, "count": 9}
        return {"loss": loss, "log_likelihood": None}

    monkeypatch.setattr("scorematching.cli.tune.run_fit", pretend)
    return calls


def test_every_combination_is_fitted_once(
    fitted: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", "redwine", "--out", str(tmp_path / "runs"), "--columns", "pH,alcohol"]
    tune = ["--tune", "model=mlp,dkef", "--tune", "seed=1,2"]
    assert main([*command, *tune]) == SOME_FAILED
    assert [(s["model"], s["seed"]) for s in fitted] == [
        ("mlp", "1"), ("mlp", "2"), ("dkef", "1"), ("dkef", "2"),
    ]  # fmt: skip
    common = ["redwine", "--columns", "pH,alcohol"]
    assert fitted[0]["command"] == [*common, "--model", "mlp", "--seed", "1"]
    assert fitted[3]["folder"] == str((tmp_path / "runs" / "0003" / "fit").resolve())
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("model=mlp seed=1: loss 1 +- 0.5 (")
    assert "model=dkef seed=2: failed: RuntimeError: no such table" in lines[3]
    assert "a little too good" in lines[4]
    assert "1 of 4 fits failed, the first with: RuntimeError: no such table" in said.err
    assert main([*command, *tune]) == SOME_FAILED and len(fitted) == 5  # the failed one again
    first = json.loads((tmp_path / "runs" / "0000" / "run.json").read_text())
    assert first["metrics"]["loss"]["mean"] == 1.0


def test_the_exit_status_says_whether_fits_failed(
    fitted: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", "redwine", "--out"]
    assert main([*command, str(tmp_path / "a"), "--tune", "seed=1,2"]) == 0
    assert capsys.readouterr().err == ""
    failing = ["--model", "dkef", "--tune", "model=dkef", "--tune", "seed=2"]
    assert main([*command, str(tmp_path / "b"), *failing]) == 1
    assert "all 1 fits failed" in capsys.readouterr().err
    assert main(["fit", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "model=mlp,dkef. Exit status 3: some failed." in shown


def test_a_loss_of_zero_is_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranked by its value, below positive losses and above negative ones."""
    losses = {"1": 0.5, "2": 0.0, "3": -0.5}
    monkeypatch.setattr(
        "scorematching.cli.tune.run_fit",
        lambda s: {"loss": {"mean": losses[s["seed"]], "standard_error": 0.1, "count": 9}},
    )
    command = ["fit", "redwine", "--out", str(tmp_path / "runs"), "--tune", "seed=1,2,3"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["seed=3", "seed=2", "seed=1"]


def test_a_family_is_not_tuned(
    fitted: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", "redwine", "--out", str(tmp_path), "--family", "gaussian"]
    assert main([*command, "--tune", "seed=1,2"]) == 1 and not fitted
    assert "--tune must be without --family" in capsys.readouterr().err


def test_results_of_a_changed_table_are_refused(
    fitted: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a\n1\n2\n")
    command = ["fit", str(table), "--out", str(tmp_path / "runs"), "--tune", "seed=1,2"]
    assert main(command) == 0 and len(fitted) == 2
    table.write_text("a\n1\n3\n")
    assert main(command) == 1 and len(fitted) == 2
    assert "was fitted to another table" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0 and len(fitted) == 4
    assert main(command) == 0 and len(fitted) == 4


@pytest.mark.parametrize("pair", ["columns=pH,alcohol", "dequantise=auto,none", "drop-missing=1"])
def test_tables_are_not_tuned(
    pair: str, fitted: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Losses of other columns or of other noise cannot be compared."""
    assert main(["fit", "redwine", "--out", str(tmp_path), "--tune", pair]) == 1
    assert "--tune must be followed by name=value,value" in capsys.readouterr().err
    assert not fitted


@pytest.mark.parametrize("pair", ["model", "model=", "colour=red", "out=a,b", "=1"])
def test_bad_input(
    pair: str, fitted: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "redwine", "--out", str(tmp_path), "--tune", pair]) == 1
    error = capsys.readouterr().err
    assert "--tune must be followed by name=value,value with a name among model" in error
    assert not fitted


def test_errors_are_those_of_the_command(tmp_path: Path) -> None:
    settings = {"command": ["nowhere.csv"], "folder": str(tmp_path / "fit")}
    with pytest.raises(RuntimeError, match=r"scorematching: .*nowhere"):
        run_fit(settings)


def test_time_limits_need_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    command = ["fit", "redwine", "--out", str(tmp_path / "run"), "--max-minutes", "1"]
    assert main(command) == 1
    assert "--max-minutes must be left out where several processes" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--executor", "ray"], ["--gpus", "1"]])
def test_options_of_tune_need_it(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were ignored without it."""
    assert main(["fit", "redwine", "--out", str(tmp_path / "run"), *option]) == 1
    assert "--executor and --gpus must be with --tune" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="file names are Unicode there")
def test_a_fit_may_print_a_file_name_in_another_encoding(tmp_path: Path) -> None:
    table = tmp_path / os.fsdecode(b"gr\xfc.csv")
    table.write_text("a,b\n1,2\n")
    with pytest.raises(RuntimeError, match="rows"):
        run_fit({"command": [str(table)], "folder": str(tmp_path / "run")})

"""``scorematching fit --tune``: every combination once, each with a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scorematching.cli import main
from scorematching.cli.tune import run_fit


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
    assert main([*command, *tune]) == 0
    assert [(s["model"], s["seed"]) for s in fitted] == [
        ("mlp", "1"), ("mlp", "2"), ("dkef", "1"), ("dkef", "2"),
    ]  # fmt: skip
    common = ["redwine", "--columns", "pH,alcohol"]
    assert fitted[0]["command"] == [*common, "--model", "mlp", "--seed", "1"]
    assert fitted[3]["folder"] == str((tmp_path / "runs" / "0003" / "fit").resolve())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("model=mlp seed=1: loss 1 +- 0.5 (")
    assert "model=dkef seed=2: failed: RuntimeError: no such table" in lines[3]
    assert "a little too good" in lines[4]
    assert main([*command, *tune]) == 0 and len(fitted) == 5  # the failed one again
    first = json.loads((tmp_path / "runs" / "0000" / "run.json").read_text())
    assert first["metrics"]["loss"]["mean"] == 1.0


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

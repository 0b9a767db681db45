"""The command line explains itself, and fails in one line with a non-zero exit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scorematching import cli


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "bench" in shown
    assert "datasets" in shown


def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("bench", "datasets", "report", "reproduce"):
        assert cli.main([command, "--help"]) == 0
        assert f"scorematching {command}" in capsys.readouterr().out


def test_datasets_says_what_is_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["datasets", "--data-dir", str(tmp_path)]) == 0
    states = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert states["redwine"] == states["banana"] == "ready"


def test_bench_writes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    options = ["--quick", "--no-peers", "--no-memory", "--rounds", "1", "--models", "mlp100"]
    assert cli.main(["bench", *options, "--output", str(path)]) == 0
    assert json.loads(path.read_text())["command"].startswith("scorematching bench --quick")


@pytest.mark.parametrize("arguments", [["nonsense"], ["datasets", "--no-such-option"]])
def test_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) != 0
    error = capsys.readouterr().err
    assert error.startswith("scorematching: ")
    assert len(error.splitlines()) == 1


def test_reproduce_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "reproduce",
        "table-nice",
        "--smoke",
        "--only",
        "paper/MLE",
        "--out",
        str(tmp_path),
    ]
    assert cli.main([*arguments, "--device", "cpu"]) == 0
    assert "| paper/MLE | 1 |" in capsys.readouterr().out
    folder = tmp_path / "table-nice-smoke"
    assert {path.name for path in folder.iterdir()} >= {"report.md", "results.json"}
    assert cli.main(["report", str(folder)]) == 0
    assert "| paper/MLE | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "table-nce"], "name must be one of figure-dkef"),
        (["reproduce", "table-nice", "--seeds", "x"], "seeds must look like 0-4 or 0,3, got 'x'"),
        (["reproduce", "table-nice", "--set", "lr"], "--set must be followed by name=value"),
        (["reproduce", "table-nice", "--set", "rate=1"], "settings must be among"),
        (["report", "nowhere"], "folders must hold finished runs"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) != 0
    assert message in capsys.readouterr().err

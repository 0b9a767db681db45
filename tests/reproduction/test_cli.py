"""The command line of the experiments: reports, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction import EXPERIMENTS, cli


def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (*EXPERIMENTS, "report"):
        assert cli.main([command, "--help"]) == 0
        assert f"python -m reproduction {command}" in capsys.readouterr().out


def test_reproduce_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
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
        (["table-nce"], "No such command 'table-nce'"),
        (["table-nice", "--seeds", "x"], "seeds must look like 0-4 or 0,3, got 'x'"),
        (["table-nice", "--set", "lr"], "--set must be followed by name=value"),
        (["table-nice", "--set", "rate=1"], "settings must be among"),
        (["report", "nowhere"], "folders must hold finished runs"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) != 0
    assert message in capsys.readouterr().err


def test_a_report_of_two_experiments_writes_nothing(tmp_path: Path) -> None:
    for name in ("table-nice", "figure-scaling"):
        arguments = [name, "--smoke", "--out", str(tmp_path), "--device", "cpu"]
        only = ["--only", "cpu"] if name == "figure-scaling" else ["--only", "stable/DSM"]
        assert cli.main([*arguments, *only]) == 0
    both = [str(tmp_path / "table-nice-smoke"), str(tmp_path / "figure-scaling-smoke")]
    assert cli.main(["report", *both, "--out", str(tmp_path / "report")]) == 1
    assert not (tmp_path / "report").exists()

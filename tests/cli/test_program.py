"""The command line explains itself, and fails in one line with a non-zero exit."""

from __future__ import annotations

from pathlib import Path

import pytest

import scorematching
from scorematching import cli


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "datasets" in capsys.readouterr().out


def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["datasets", "--help"]) == 0
    assert "scorematching datasets" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"scorematching {scorematching.__version__}\n"


def test_datasets_says_what_is_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["datasets", "--data-dir", str(tmp_path)]) == 0
    states = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert states["redwine"] == states["banana"] == "ready"


@pytest.mark.parametrize("arguments", [["nonsense"], ["datasets", "--no-such-option"]])
def test_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) != 0
    error = capsys.readouterr().err
    assert error.startswith("scorematching: ")
    assert len(error.splitlines()) == 1

"""The command line explains itself, and fails in one line with a non-zero exit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import scorematching
from scorematching import cli
from scorematching.cli.commands import COMMANDS
from tests.reliability.processes import ROOT


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_without_arguments_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help was written as one line, like an error."""
    cli.main([])
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len(lines) > 10 and lines[0].startswith("Usage: ") and "Commands:" in lines


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Example: scorematching {command}" in shown
    assert len(shown.splitlines()) <= 40 and max(map(len, shown.splitlines())) <= 80


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"scorematching {scorematching.__version__}\n"


@pytest.mark.usefixtures("only_named_folders")
def test_datasets_says_what_is_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["datasets", "--data-dir", str(tmp_path)]) == 0
    states = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert states["redwine"] == states["banana"] == "ready"
    assert states["whitewine"] == "not found; --download whitewine fetches it"


@pytest.mark.usefixtures("only_named_folders")
def test_datasets_downloads_with_a_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deliver(url: str, path: Path, name: str) -> None:
        path.write_bytes(b"an error page")

    monkeypatch.setattr("scorematching.datasets.files._stream", deliver)
    options = ["--data-dir", str(tmp_path)]
    assert cli.main(["datasets", "--download", "whitewine", *options]) == 1
    assert "sha256" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert cli.main(["datasets", "--download", "redwin", *options]) == 1
    assert cli.main(["datasets", "--download", "redwine", *options]) == 0
    assert "CC BY 4.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--debug", "inspect", "x.csv"], ["inspect", "x.csv", "--debug"]]
)
def test_debug_shows_tracebacks_wherever_it_stands(words: list[str]) -> None:
    with pytest.raises(FileNotFoundError):
        cli.main(words)


def test_debug_does_not_show_those_of_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "--no-such-option", "--debug"]) == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_ctrl_c_while_the_program_is_imported(tmp_path: Path) -> None:
    """It was a traceback for the first seconds. In other programs it stays their own matter."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")  # Ctrl-C in the middle of torch
    script, other = tmp_path / "scorematching", tmp_path / "other.py"
    script.write_text("from scorematching.cli import main\n")  # as pip makes it
    other.write_text("import scorematching\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    said = (cli.INTERRUPTED, "scorematching: interrupted\n")
    assert cli.INTERRUPTED == 130
    for words in (["-m", "scorematching"], ["-mscorematching"], [str(script)]):
        assert run(*words, "inspect", "redwine") == said
    for words in ([str(other)], ["-c", "import scorematching"]):
        code, error = run(*words, "scorematching")
        assert code != 0 and error.startswith("Traceback") and "KeyboardInterrupt" in error


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["nonsense"], "nonsense"),
        (["evalute"], "Did you mean 'evaluate'?"),
        (["datasets", "--no-such-option"], "--no-such-option"),
        (["fit", "x.csv", "--ot", "run"], "--out"),
        (["fit", "x.csv"], "--out"),
        (["fit", "redwine", "--out", "run", "--model", "dkeff"], "dkef"),
        (["fit", "redwin", "--out", "run"], "did you mean 'redwine'?"),
        (["fit", "banana", "--out", "run", "--max-minutes", "-1"], "--max-minutes must be a pos"),
        (["fit", "banana", "--out", "run", "--max-minutes", "nan"], "got nan; leave it out"),
        (["fit", "banana", "--out", "run", "--seed", "9" * 20], "--seed"),
        (["fit", "banana", "--out", "run", "--family", "gamma", "--model", "nice"], "--model nice"),
        (["fit", "banana", "--out", "/proc/run"], "--out must be a place that can be written to"),
        (["report", "no-such-run"], "scorematching fit DATA --out no-such-run"),
        (["inspect", "."], "must be the folder of a run"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    hint: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) != 0
    assert not list(tmp_path.iterdir())  # nothing was written
    error = capsys.readouterr().err
    assert hint in error
    assert error.startswith("scorematching: ")
    assert len(error.splitlines()) == 1

"""Commands end quietly when the reader of their output has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from scorematching.cli import main
from scorematching.cli.pipes import READER_GONE


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """An output that nobody reads."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    output = os.fdopen(write_end, "w", buffering=1)  # by lines, as standard error is
    yield output
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, write_end)  # for what is left in the buffer
    os.close(nowhere)
    output.close()


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["fit", "--help"],
        ["datasets"],
        ["inspect", "RUN"],
        ["inspect", "TABLE"],
        ["evaluate", "RUN"],
        ["compare", "RUN", "RUN"],
        ["score", "RUN", "TABLE", "--out", "scored.csv"],
        ["sample", "RUN", "10", "--out", "samples.csv"],
        ["fit", "TABLE", "--out", "new", "--model", "mlp", "--max-minutes", "1e-7"],
    ],
    ids=" ".join,
)
def test_status_is_that_of_sigpipe_and_nothing_is_half_written(
    words: list[str],
    small_run: Path,
    small_table: Path,
    tmp_path: Path,
    unread: TextIO,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # which typer replaces
    monkeypatch.setattr(sys, "stdout", unread)
    names = {"RUN": str(small_run), "TABLE": str(small_table)}
    assert main([names.get(word, word) for word in words]) == READER_GONE
    assert not capsys.readouterr().err
    # Files that were complete before the last line are there, others are not, hidden or not.
    assert {path.name for path in tmp_path.iterdir()} <= {"scored.csv", "samples.csv"}


def test_a_message_about_a_mistake_that_nobody_reads(
    unread: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", unread)
    assert main(["nonsense"]) == READER_GONE


def test_a_fit_whose_progress_nobody_reads_leaves_no_folder(
    small_table: Path, tmp_path: Path, unread: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorematching.cli.progress._INTERVAL", 0.0)
    monkeypatch.setattr("scorematching.cli.fit.say", lambda *lines: None)
    monkeypatch.setattr(sys, "stdout", unread)
    monkeypatch.setattr(sys, "stderr", unread)
    words = ["fit", str(small_table), "--out", str(tmp_path / "run"), "--model", "mlp"]
    assert main([*words, "--max-minutes", "1e-7"]) == READER_GONE
    assert not list(tmp_path.iterdir())


def test_the_program_ends_without_a_word(small_run: Path, unread: TextIO) -> None:
    """Python complains at its exit if it cannot write what is left in a buffer."""
    words = [sys.executable, "-m", "scorematching", "inspect", str(small_run)]
    done = subprocess.run(words, stdout=unread, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (READER_GONE, b"")

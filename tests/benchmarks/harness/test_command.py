"""A file of results has the command that makes it again."""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import estimators
from benchmarks.density import __main__ as density
from benchmarks.harness.command import OutputError, checked, command_line, run_command
from benchmarks.harness.provenance import ROOT
from benchmarks.objectives import run

GIVEN = {
    run.measure: {"rounds": 7, "memory": False, "models": ["flow", "conv"], "compiled": True},
    density.measure: {"seeds": 2, "smoke": True},
    estimators.measure: {"smoke": True},
}


@pytest.mark.parametrize("function", GIVEN)
def test_only_what_differs_is_named(function) -> None:
    parameters = inspect.signature(function).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    given = {**defaults, **GIVEN[function], "output": Path("somewhere")}
    words = shlex.split(command_line("python -m program", function, given))
    assert "somewhere" not in words
    assert {w.removeprefix("--").removeprefix("no-") for w in words if w.startswith("--")} == set(
        GIVEN[function]
    )
    assert command_line("python -m program", function, defaults) == "python -m program"


def test_the_program_explains_itself() -> None:
    def start(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "benchmarks.objectives", *words]
        plain = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
        return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, env=plain)

    shown = start("--help")
    assert shown.returncode == 0 and "python -m benchmarks.objectives --rounds 20" in shown.stdout
    wrong = start("--roundz", "2")
    assert wrong.returncode == 2 and "No such option: --roundz" in wrong.stderr


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("output", "/proc/results.json"),
        ("output", "{file}/results.json"),
        ("output", "{folder}.json"),
        ("docs", "/proc/nowhere"),
        ("docs", "{file}"),
    ],
)
def test_an_unwritable_output_is_noticed_before_measuring(
    option: str, path: str, tmp_path: Path
) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.with_suffix(".json").mkdir()
    measured = []
    given = {option: Path(path.format(file=file, folder=folder))}
    with pytest.raises(OutputError, match=f"--{option} must be"):
        checked(lambda **options: measured.append(options))(**given)
    assert not measured


def test_a_writable_output_is_left_as_it_was(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("{}")
    for path in (old, tmp_path / "new" / "deep" / "results.json"):
        assert checked(lambda output: output)(output=path) == path
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"] and old.read_text() == "{}"


def test_ctrl_c_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> None:
        """Measure nothing."""
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["measure"])
    with pytest.raises(SystemExit) as leaving:
        run_command(measure, "measure")
    assert leaving.value.code == 130
    assert "interrupted; no results were written" in capsys.readouterr().err

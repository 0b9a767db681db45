"""The command line of the experiments: reports, and mistakes in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reproduction import EXPERIMENTS, cli, run
from scorematching.training.lock import locked


def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (*EXPERIMENTS, "report", "queue", "all", "page"):
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


def test_a_folder_without_runs_is_refused_beside_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report has a file of all its runs; its folder alone would be left out, then overwritten."""
    arguments = ["table-nice", "--smoke", "--only", "paper/MLE", "--device", "cpu"]
    assert cli.main([*arguments, "--out", str(tmp_path)]) == 0
    runs, report = tmp_path / "table-nice-smoke", tmp_path / "report"
    assert cli.main(["report", str(runs), "--out", str(report)]) == 0
    before = (report / "results.json").read_bytes()
    capsys.readouterr()
    assert cli.main(["report", str(report), str(runs), "--out", str(report)]) == 1
    said = capsys.readouterr().err
    assert f"got none in {report}" in said and "results.json" in said
    assert (report / "results.json").read_bytes() == before
    assert cli.main(["report", str(report / "results.json"), str(runs), "--out", str(report)]) == 0


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


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second run: the first is finished, and kept."""
    done = run.do

    def interrupted(task: run.Task) -> object:
        if task.job.seed == 1:
            raise KeyboardInterrupt
        return done(task)

    monkeypatch.setattr(run, "do", interrupted)
    arguments = ["table-nice", "--smoke", "--only", "paper/MLE", "--out", str(tmp_path)]
    assert cli.main([*arguments, "--seeds", "0-2", "--device", "cpu"]) == 130
    shown = capsys.readouterr()
    assert "interrupted: 1 of 3 runs are finished; the same command goes on" in shown.out
    assert "interrupted" in shown.err


def test_a_run_that_another_process_does_is_left_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "table-nice-smoke" / "paper" / "MLE" / "seed-0"
    folder.mkdir(parents=True)
    arguments = ["table-nice", "--smoke", "--only", "paper/MLE", "--out", str(tmp_path)]
    with locked(folder, run.LOCK):
        assert cli.main([*arguments, "--device", "cpu"]) == 1
    assert f"process {os.getpid()} on" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_an_unwritable_folder_is_noticed_first(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["table-nice", "--smoke", "--only", "paper/MLE", "--out", "/proc/nowhere"]
    assert cli.main([*arguments, "--device", "cpu"]) == 1
    shown = capsys.readouterr()
    assert "--out must be a place where files can be written" in shown.err
    assert "MLE" not in shown.out  # nothing was begun

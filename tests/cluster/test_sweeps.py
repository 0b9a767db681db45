"""Sweeps in this process, and what is said where Ray is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reproduction.run import Request
from scorematching.cluster import SweepRun, connect, grid, sweep, train_on_ray

SETTINGS = grid({"lr": [0.1, 0.2], "seed": [0, 1, 2]})


class Counted:
    """A function that counts its calls, and fails for some settings."""

    def __init__(self, wrong: int | None = None) -> None:
        self.calls, self.wrong = 0, wrong

    def __call__(self, settings: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if settings["seed"] == self.wrong:
            raise KeyError("wrong on purpose")
        return {"loss": settings["lr"] + settings["seed"]}


def test_grid_has_all_combinations_once() -> None:
    assert len(SETTINGS) == 6 and len({tuple(s.items()) for s in SETTINGS}) == 6
    assert [s["lr"] for s in SETTINGS] == [0.1] * 3 + [0.2] * 3


def test_every_run_has_a_file(tmp_path: Path) -> None:
    runs = sweep(Counted(), SETTINGS, tmp_path)
    assert [run.metrics["loss"] for run in runs] == [s["lr"] + s["seed"] for s in SETTINGS]
    for number, run in enumerate(runs):
        found = json.loads((tmp_path / f"{number:04d}" / "run.json").read_text())
        assert SweepRun(**found) == run and run.settings == SETTINGS[number]


def test_finished_runs_are_not_repeated_and_failed_ones_are(tmp_path: Path) -> None:
    first = Counted(wrong=1)
    runs = sweep(first, SETTINGS, tmp_path)
    failed = [run for run in runs if run.error]
    assert [run.error for run in failed] == ["KeyError: 'wrong on purpose'"] * 2
    assert len([*tmp_path.rglob("run.json")]) == 4
    second = Counted()
    assert all(run.error is None for run in sweep(second, SETTINGS, tmp_path))
    assert (first.calls, second.calls) == (6, 2)


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    sweep(Counted(), SETTINGS, tmp_path)
    with pytest.raises(ValueError, match=r"0000.run.json must hold .* choose another folder"):
        sweep(Counted(), [{"lr": 1.0, "seed": 0}], tmp_path)
    (tmp_path / "0000" / "run.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        sweep(Counted(), SETTINGS, tmp_path)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'executor must be "local" or "ray", got .slurm.'):
        sweep(Counted(), SETTINGS, tmp_path, executor="slurm")
    with pytest.raises(ValueError, match=r'executor must be "local" or "ray", got .slurm.'):
        Request(executor="slurm")
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        train_on_ray(Counted(), {}, tmp_path, workers=0)


def test_missing_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install .scorematching\[ray\]"), connect():
        raise AssertionError
    with pytest.raises(ImportError, match=r"pip install .scorematching\[ray\]"):
        sweep(Counted(), SETTINGS, tmp_path, executor="ray")

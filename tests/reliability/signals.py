"""Ctrl-C on real processes, and two processes in one folder."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.reliability.counts import Count
from tests.reliability.processes import ROOT, finish, start, wait_until

TRAIN = """
import sys, torch
import scorematching as sm
from scorematching.training import TrainConfig, train
config = TrainConfig(steps=10**7, batch_size=8, checkpoint_every=10**6)
x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
model = sm.models.MLPDensity(dim=2, hidden=(8,))
train(model, sm.SlicedScoreMatchingVR(), x, config, folder=sys.argv[1], resume=True,
      generator=torch.Generator().manual_seed(0))
"""


def experiment(out: Path, *more: str) -> list[str]:
    """An experiment that takes hours."""
    settings = ["--smoke", "--set", "epochs=1000000", "--only", "paper/MLE", "--device", "cpu"]
    return ["-m", "reproduction", "table-nice", *settings, "--out", str(out), *more]


def programs(folder: Path) -> dict[str, tuple[list[str], int]]:
    """Command lines, and how many runs are to be under way before they are interrupted."""
    return {
        "train": (["-c", TRAIN, str(folder / "train")], 1),
        "an experiment": (experiment(folder / "one"), 1),
        "an experiment with two workers": (
            experiment(folder / "two", "--workers", "2", "--seeds", "0-3"),
            2,
        ),
    }


def interrupts(folder: Path) -> Count:
    """SIGINT to each program; twice, the second time after it was resumed."""
    found = Count(
        "Ctrl-C on train, on an experiment and on one with two workers, resumed and again",
        "exit with 130 within a minute, a checkpoint, a line that says how to go on, no lock left",
    )
    for words, runs in programs(folder).values():
        for _ in range(2):
            found.attempt(lambda words=words, runs=runs: _interrupt(folder, words, runs))
    return found


def _interrupt(folder: Path, words: list[str], runs: int) -> None:
    def begun() -> bool:
        return len(list(folder.rglob("train.lock"))) >= runs

    for left in folder.rglob("*.lock"):
        left.unlink()
    process = start(*words, cwd=ROOT)
    assert wait_until(begun, process), finish(process)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    status, _, errors = finish(process)
    # Python ends by the signal itself where nobody catches KeyboardInterrupt; shells say 130.
    assert status in (130, -signal.SIGINT), (status, errors[-2000:])
    assert "resume=True goes on" in errors, errors[-2000:]
    assert len(list(folder.rglob("checkpoint.json"))) >= runs
    assert not list(folder.rglob("*.lock"))


def benchmark(folder: Path) -> Count:
    found = Count("Ctrl-C on a benchmark", "exit with 130, no file of results")
    output = folder / "results.json"

    def act() -> None:
        words = ["-m", "benchmarks.estimators", "--output", str(output), "--docs", str(folder)]
        process = start(*words, cwd=ROOT)
        assert process.stdout is not None
        process.stdout.readline()  # the first case is done
        os.kill(process.pid, signal.SIGINT)
        status, _, errors = finish(process)
        assert status == 130, (status, errors[-500:])
        assert "interrupted" in errors and not output.exists()

    found.attempt(act)
    return found


def locks(folder: Path) -> Count:
    """A second process in the folder of the first; then the first is killed."""
    found = Count(
        "a second process in the folder of a run; and after the first was killed with -9",
        "refused, naming the first by process and host; accepted after its death",
    )
    place = folder / "train"

    def act() -> None:
        first = start("-c", TRAIN, str(place))
        try:
            assert wait_until((place / "log.jsonl").exists, first), finish(first)
            second = start("-c", TRAIN, str(place))
            status, _, errors = finish(second)
            assert status == 1 and f"process {first.pid} on" in errors, errors[-1000:]
        finally:
            os.kill(first.pid, signal.SIGKILL)
            finish(first)
        third = start("-c", TRAIN, str(place))
        assert wait_until(_is_held_by(place / "train.lock", third.pid), third), finish(third)
        os.kill(third.pid, signal.SIGKILL)
        finish(third)

    found.attempt(act)
    return found


def _is_held_by(path: Path, pid: int) -> Callable[[], bool]:
    def held() -> bool:
        with contextlib.suppress(OSError):
            return f'"process": {pid}' in path.read_text()
        return False

    return held

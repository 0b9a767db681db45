"""Ctrl-C ends a run after its step, with a checkpoint from which it goes on to the same digits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scorematching.training import interrupts, read_log
from scorematching.training.interrupts import Interruption
from scorematching.training.ranks import Ranks
from tests.training.problems import digits, noisy, run_everything


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Python's own, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # it was put back
    signal.signal(signal.SIGINT, before)


def sending(at: int, times: int = 1) -> Callable[..., Tensor]:
    """The transform, which sends SIGINT to this process before step ``at``."""
    batches = 0

    def transform(batch: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal batches
        batches += len(batch) <= 8
        if batches == at and len(batch) <= 8:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
        return noisy(batch, generator)

    return transform


@pytest.mark.parametrize("step", [1, 8, 13, 37])
def test_the_run_goes_on_to_the_same_digits(
    step: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt, match=f"after step {step} of 37: the checkpoint is in"):
        run_everything(tmp_path, transform=sending(step))
    assert f"interrupted after step {step}" in caplog.text and "resume=True" in caplog.text
    assert read_log(tmp_path / "log.jsonl")[-1] == {"event": "interrupted", "step": step}
    assert not list(tmp_path.glob("*.lock"))
    assert digits(run_everything(tmp_path, resume=True, seed=99)) == digits(run_everything(None))


def test_a_second_one_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "IMPATIENT", 0.0)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_everything(tmp_path, transform=sending(8, times=2))
    assert not caught.value.args  # raised where the step was, not after it
    assert not list(tmp_path.glob("*.lock"))
    assert digits(run_everything(tmp_path, resume=True)) == digits(run_everything(None))


def test_two_in_quick_succession_count_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="after step 8"):
        run_everything(tmp_path, transform=sending(8, times=3))


def test_without_a_folder_it_says_so() -> None:
    with pytest.raises(KeyboardInterrupt, match="pass folder= to be able to go on"):
        run_everything(None, transform=sending(8))


def test_other_handlers_are_left_alone() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    run_everything(None, transform=sending(3))
    assert seen == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_threads_have_no_handlers() -> None:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(digits(run_everything(None))))
    thread.start()
    thread.join()
    assert results == [digits(run_everything(None))]


def test_processes_agree_on_the_step() -> None:
    """One of them was asked; both end at the next step at which they speak to each other."""

    class Two(Ranks):
        def gather(self, x: Tensor) -> Tensor:
            return torch.stack([x, torch.ones_like(x)])

    ranks = Two(torch.device("cpu"), rank=0, count=2)
    assert [Interruption().agreed(ranks, step, 5) for step in (1, 4, 5, 6, 10)] == [
        False,
        False,
        True,
        False,
        True,
    ]

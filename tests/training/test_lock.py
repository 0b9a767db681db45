"""One process in a folder at a time, and a dead one holds nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import scorematching as sm
from scorematching.errors import FolderInUseError
from scorematching.training import TrainConfig, train
from scorematching.training.lock import LOCK, locked
from tests.reliability.processes import finish, start
from tests.training.problems import density, digits, points, run_everything, seeded

HOLD = """
import sys, time
from pathlib import Path
from scorematching.training.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_process_is_refused_and_named(tmp_path: Path) -> None:
    holder = start("-c", HOLD, str(tmp_path))
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(FolderInUseError, match=rf"process {holder.pid} on .* since 20") as caught:
        run_everything(tmp_path)
    assert str(tmp_path) in str(caught.value) and "choose another folder" in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {LOCK}  # it has written nothing
    os.kill(holder.pid, signal.SIGKILL)
    finish(holder)
    assert (tmp_path / LOCK).exists()  # it could not clear up
    assert digits(run_everything(tmp_path)) == digits(run_everything(None))
    assert not (tmp_path / LOCK).exists()


def test_two_runs_in_one_process(tmp_path: Path) -> None:
    class Second(sm.training.Callback):
        def on_start(self, state: sm.training.TrainState) -> None:
            with pytest.raises(FolderInUseError, match=f"process {os.getpid()}"):
                run_everything(tmp_path, resume=True)

    config = TrainConfig(steps=2, batch_size=8)
    g = seeded(0)
    train(
        density(),
        sm.ScoreMatching(),
        points(),
        config,
        generator=g,
        folder=tmp_path,
        callbacks=[Second()],
    )


def test_locks_of_two_kinds_and_two_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with locked(tmp_path), locked(tmp_path, "other.lock"), locked(tmp_path / "a"):
        holder = json.loads((tmp_path / LOCK).read_text())
        assert holder["process"] == os.getpid()
    assert not list(tmp_path.rglob("*.lock"))
    with locked(tmp_path):  # and once more
        pass


def test_an_error_releases_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass


@pytest.mark.slow
def test_a_lock_that_its_holder_removes_is_not_shared(tmp_path: Path) -> None:
    """Many processes, each of which holds it for a moment; never two at a time."""
    script = """
import os, sys, time
from pathlib import Path
from scorematching.errors import FolderInUseError
from scorematching.training.lock import locked
folder, held = Path(sys.argv[1]), 0
while held < 30:
    try:
        with locked(folder):
            inside = os.open(folder / "inside", os.O_CREAT | os.O_EXCL)
            os.close(inside)
            (folder / "inside").unlink()
            held += 1
    except FolderInUseError:
        time.sleep(0.0005)
"""
    processes = [start("-c", script, str(tmp_path)) for _ in range(3)]
    outcomes = [finish(process) for process in processes]
    assert [status for status, _, _ in outcomes] == [0, 0, 0], outcomes

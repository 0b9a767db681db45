"""``kill -9`` at random moments, and runs that go on to the same digits.

Run as a module it is the process that starts, kills and resumes runs, each forked after one import
of torch: ``python -m tests.reliability.kills FOLDER A B C D SEED`` with the numbers of kills at any
moment, in a checkpoint, in a validation, and of one of two ranks. It prints what became of each, in
JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch  # noqa: F401  once, not in every process
import torch
from torch import Tensor

from tests.training.distributed import fork
from tests.training.problems import digits, noisy, run_everything

KINDS = ("at any moment", "in a checkpoint", "in a validation", "one of two ranks")
MINUTE = 60.0

Row = dict[str, Any]


def slowly(batch: Tensor, generator: torch.Generator) -> Tensor:
    time.sleep(0.004)
    return noisy(batch, generator)


def train_in(folder: Path, transform: Callable[..., Tensor] = slowly) -> None:
    """Begin or resume the run, and write its digits."""
    found = digits(run_everything(folder, resume=True, transform=transform))
    rank = os.environ.get("RANK", "0")
    (folder / f"digits-{rank}.json").write_text(json.dumps(found))


def child(act: Callable[[], None], folder: Path) -> int:
    """A forked process that does something and leaves its errors in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    errors = os.open(folder / f"errors-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(errors, 2)
    try:
        act()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def status(pid: int, patience: float = MINUTE) -> int | None:
    """The exit status of a child, negative for a signal; None, and it is killed, if it hangs."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(code)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


# Ways to die.


def killed_after(seconds: float, folder: Path) -> int | None:
    pid = child(lambda: train_in(folder), folder)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return status(pid)


def killed_in_checkpoint(call: int, folder: Path) -> int | None:
    """At the n-th time that a file is flushed to the disk or renamed."""

    def act() -> None:
        left = call

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*arguments: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments)

            return wrapper

        os.fsync, os.replace = counted(os.fsync), counted(os.replace)  # type: ignore[assignment]
        train_in(folder)

    return status(child(act, folder))


def killed_in_validation(call: int, folder: Path) -> int | None:
    """At the n-th time that held-out points, which are more than eight, are prepared."""
    left = call

    def transform(batch: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal left
        left -= len(batch) > 8
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return slowly(batch, generator)

    return status(child(lambda: train_in(folder, transform), folder))


def resumed(folder: Path, expected: str) -> bool:
    code = status(child(lambda: train_in(folder), folder))
    path = folder / "digits-0.json"
    return code == 0 and path.exists() and path.read_text() == expected


# Two ranks.


def start_ranks(folder: Path) -> list[int]:
    """Two forked processes that train together, in a group with a parent of their own."""
    read, write = os.pipe()
    leader = os.fork()
    if leader == 0:
        rank, children = fork(2)
        if rank == 0:
            os.write(write, json.dumps([os.getpid(), *children]).encode() + b"\n")
        errors = os.open(folder / f"errors-rank-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(errors, 2)
        code = 0
        try:
            train_in(folder)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        if rank == 0:
            for other in children:
                status(other)
        os._exit(code)
    with os.fdopen(read) as pipe:
        os.close(write)
        pids: list[int] = json.loads(pipe.readline())
    return pids


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool], seconds: float) -> float:
    """Seconds until something is so; infinite if it never is."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return float("inf")
        time.sleep(0.005)
    return time.monotonic() - began


def kill_rank(chance: random.Random, folder: Path, expected: str) -> Row:
    """Kill one of two ranks; the other must stop within a minute and name it."""
    folder.mkdir(parents=True)
    pids, victim = start_ranks(folder), chance.randrange(2)
    wait_for((folder / "checkpoint.json").exists, MINUTE)
    time.sleep(0.1 * chance.random())
    os.kill(pids[victim], signal.SIGKILL)
    other = pids[1 - victim]
    seconds = wait_for(lambda: not is_running(other), MINUTE)
    if seconds == float("inf"):
        os.kill(other, signal.SIGKILL)
    _reap(pids[0])
    words = (folder / f"errors-rank-{1 - victim}").read_text()
    named = "LostRankError" in words and f"rank {victim}" in words
    if victim == 1:
        named = named and f"process {pids[1]}" in words
    again = start_ranks(folder)
    wait_for(lambda: not any(map(is_running, again)), MINUTE)
    _reap(again[0])
    found = [(folder / f"digits-{rank}.json") for rank in (0, 1)]
    same = all(path.exists() and path.read_text() == expected for path in found)
    return {"same": same, "named": named, "seconds": round(seconds, 1), "victim": victim}


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def of_two_ranks(folder: Path) -> str:
    """The digits of two ranks without interruption."""
    folder.mkdir(parents=True)
    pids = start_ranks(folder)
    wait_for(lambda: not any(map(is_running, pids)), MINUTE)
    _reap(pids[0])
    return (folder / "digits-0.json").read_text()


# All.


def kill_all(folder: Path, counts: dict[str, int], seed: int) -> list[Row]:
    chance = random.Random(seed)
    began = time.monotonic()
    assert status(child(lambda: train_in(folder / "whole"), folder / "whole")) == 0
    duration = time.monotonic() - began
    expected = (folder / "whole" / "digits-0.json").read_text()
    ways: dict[str, Callable[[Path], int | None]] = {
        "at any moment": lambda path: killed_after(duration * chance.random(), path),
        "in a checkpoint": lambda path: killed_in_checkpoint(chance.randint(1, 60), path),
        "in a validation": lambda path: killed_in_validation(chance.randint(1, 9), path),
    }
    rows = []
    for kind, kill in ways.items():
        for trial in range(counts[kind]):
            path = folder / f"{kind.replace(' ', '-')}-{trial}"
            code = kill(path)
            row: Row = {"kind": kind, "killed": code == -signal.SIGKILL}
            row["checkpoint"] = (path / "checkpoint.json").exists()
            rows.append(row | {"same": resumed(path, expected)})
    if counts["one of two ranks"]:
        pair = of_two_ranks(folder / "pair")
        for trial in range(counts["one of two ranks"]):
            row = kill_rank(chance, folder / f"ranks-{trial}", pair)
            rows.append({"kind": "one of two ranks", "killed": True, "checkpoint": True, **row})
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = dict(zip(KINDS, map(int, sys.argv[2:6])))
    print(json.dumps(kill_all(Path(sys.argv[1]), numbers, int(sys.argv[6]))))

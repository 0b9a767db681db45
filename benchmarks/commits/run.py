"""Time of every loss of this library, relative to an earlier commit.

Two processes hold the same models, one with each version of the library. They take turns, in
an order shuffled anew for every round, so that a slow period of the machine affects both.

Example:
    python -m benchmarks.commits 4c297af --device cuda
"""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness.command import Output, command_line
from benchmarks.harness.provenance import ROOT, stamp

PROGRAM = "python -m benchmarks.commits"
TURN_SECONDS = 0.05
"""How long one turn lasts at least, in steps of the loss."""

Old = Annotated[str, typer.Argument(help="Commit, or a folder that holds its src.")]
Rounds = Annotated[int, typer.Option(min=3, help="Turns of each version.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Only = Annotated[str, typer.Option(help="Time only losses whose name contains this.")]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see that it runs.")]


def measure(
    old: Old,
    rounds: Rounds = 20,
    device: Device = "cpu",
    only: Only = "",
    quick: Quick = False,
    output: Output = None,
) -> dict[str, Any]:
    """Time every loss of this library, relative to an earlier commit."""
    command = command_line(PROGRAM, measure, {**locals(), "old": inspect.Parameter.empty})
    command = command.replace(PROGRAM, f"{PROGRAM} {old}")
    with ExitStack() as stack:
        sources = [_source(old, stack), ROOT / "src"]
        workers = [stack.enter_context(Worker(source, device, quick)) for source in sources]
        names = [n for n in workers[0].losses if n in workers[1].losses and only in n]
        rows = [compare(name, workers, rounds) for name in names]
    document = {**stamp(command, device), "old": old, "rounds": rounds, "rows": rows}
    if output is not None:
        output.write_text(json.dumps(document, indent=1) + "\n")
    return document


def compare(name: str, workers: list[Worker], rounds: int) -> dict[str, Any]:
    """One loss: the medians of both versions, and the median ratio of a turn to its neighbour."""
    shuffle = random.Random(0)
    first = max(worker.seconds(name, 2) for worker in workers)
    steps = max(1, round(TURN_SECONDS / first))
    turns = np.empty((rounds, 2))
    for i in range(rounds):
        for k in shuffle.sample(range(2), 2):
            turns[i, k] = workers[k].seconds(name, steps)
    old, new = np.median(turns, axis=0)
    ratios = turns[:, 1] / turns[:, 0]
    spread = 1.25 * float(ratios.std()) / rounds**0.5
    row = {"loss": name, "old_ms": 1e3 * old, "new_ms": 1e3 * new}
    row |= {"ratio": float(np.median(ratios)), "standard_error": spread, "steps": steps}
    print(
        f"{name:44s} {1e3 * old:9.3f} {1e3 * new:9.3f} ms  x {row['ratio']:.3f} +- {spread:.3f}",
        flush=True,
    )
    return row


class Worker:
    """A process that runs one version of the library."""

    def __init__(self, source: Path, device: str, quick: bool) -> None:
        path = os.pathsep.join([str(source), str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "benchmarks.commits.worker", device]
        self.process = subprocess.Popen(
            command + (["quick"] if quick else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.losses: list[str] = self._answer()

    def seconds(self, name: str, steps: int) -> float:
        """Seconds per step of one loss."""
        assert self.process.stdin is not None
        print(json.dumps([name, steps]), file=self.process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker stopped with exit status {self.process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def _source(old: str, stack: ExitStack) -> Path:
    """The folder ``src`` of a commit: given, or unpacked into a temporary folder."""
    if Path(old).is_dir():
        return Path(old) / "src"
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    archive = subprocess.run(["git", "archive", old, "src"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        raise ValueError(f"old must be a commit or a folder with src, got {old!r}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"

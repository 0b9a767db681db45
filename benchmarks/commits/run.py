"""Time of every loss of this library, relative to an earlier commit.

One process holds the same models with each version of the library (see `worker`). They take turns,
in an order shuffled anew for every round, so that a slow period of the machine affects both. The
process is started several times, because where its memory lies changes the time of a step, and the
version that is loaded first alternates, since its memory lies elsewhere than that of the second.

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
import numpy.typing as npt
import typer

from benchmarks.harness.command import Output, command_line
from benchmarks.harness.provenance import ROOT, stamp

Turns = npt.NDArray[np.float64]
PROGRAM = "python -m benchmarks.commits"
TURN_SECONDS = 0.05
"""How long one turn lasts at least, in steps of the loss."""

VERSIONS = (0, 1)
"""The old version and the new one."""

SHORT = 0.02
"""Seconds of a step that can be repeated 64 times before it is timed."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 26), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)}
"""Settings of glibc's malloc. By default a process may give memory back to the system at every step
and get it again by page faults; whether it does so depends on what it allocated before, and changes
the time of a step by up to 30% from process to process, with either version."""

Old = Annotated[str, typer.Argument(help="Commit, or a folder that holds its src.")]
Rounds = Annotated[int, typer.Option(min=3, help="Turns of each version in one process.")]
Restarts = Annotated[int, typer.Option(min=2, help="Processes, one after the other.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Time only losses whose name contains this; repeatable [all]."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see that it runs.")]


def measure(
    old: Old,
    rounds: Rounds = 8,
    restarts: Restarts = 5,
    device: Device = "cpu",
    only: Only = None,
    quick: Quick = False,
    output: Output = None,
) -> dict[str, Any]:
    """Time every loss of this library, relative to an earlier commit."""
    command = command_line(PROGRAM, measure, {**locals(), "old": inspect.Parameter.empty})
    command = command.replace(PROGRAM, f"{PROGRAM} {old}")
    turns: dict[str, list[Turns]] = {}
    with ExitStack() as stack:
        sources = [_source(old, stack), ROOT / "src"]
        for seed in range(restarts):
            order = VERSIONS if seed % 2 == 0 else VERSIONS[::-1]
            with Worker([sources[version] for version in order], device, quick) as worker:
                for name in _chosen(worker.losses, only):
                    found = alternate(name, worker, rounds, seed)[:, order]
                    turns.setdefault(name, []).append(found)
            rows = [summary(name, found) for name, found in turns.items()]
            document = {**stamp(command, device), "old": old, "restarts": seed + 1, "rows": rows}
            if output is not None:
                output.write_text(json.dumps(document, indent=1) + "\n")
    show(rows)
    return document


def _chosen(losses: list[str], only: list[str] | None) -> list[str]:
    """Those that are asked for."""
    return [name for name in losses if any(part in name for part in only or [""])]


def alternate(name: str, worker: Worker, rounds: int, seed: int) -> Turns:
    """Seconds per step of one loss by both versions of a process, ``(rounds, 2)``."""
    shuffle = random.Random(seed)
    first = max(worker.seconds(version, name, 4) for version in VERSIONS)
    for version in VERSIONS:  # beyond the first checks of derivatives; `benchmarks.checks` has them
        worker.seconds(version, name, 64 if first < SHORT else 15)
    steps = max(1, round(TURN_SECONDS / min(worker.seconds(k, name, 1) for k in VERSIONS)))
    turns = np.empty((rounds, 2))
    for i in range(rounds):
        for k in shuffle.sample(VERSIONS, 2):
            turns[i, k] = worker.seconds(k, name, steps)
    return turns


def summary(name: str, found: list[Turns]) -> dict[str, Any]:
    """The time of both versions and their ratio, with its standard error over processes.

    The ratio of one process is the median ratio of neighbouring turns. "fastest" is the
    ratio of the mean times of the fastest quarter of all turns of each version: where Python takes
    most of the time, as in eager steps on a GPU, slower turns are those of a disturbed machine.
    """
    turns = np.concatenate(found)
    old, new = (1e3 * float(np.median(turns[:, k])) for k in (0, 1))
    ratios = np.array([np.median(pair[:, 1] / pair[:, 0]) for pair in found])
    row = {"loss": name, "old_ms": old, "new_ms": new, "ratio": float(np.median(ratios))}
    error = float(ratios.std(ddof=1) / len(ratios) ** 0.5) if len(ratios) > 1 else None
    quarter = np.sort(turns, axis=0)[: max(1, len(turns) // 4)].mean(axis=0)
    row |= {"standard_error": error, "fastest": float(quarter[1] / quarter[0])}
    return {**row, "ratios": ratios.tolist()}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line for every loss."""
    for row in rows:
        error = "?" if row["standard_error"] is None else f"{row['standard_error']:.3f}"
        times = f"{row['old_ms']:9.3f} {row['new_ms']:9.3f} ms"
        ratios = f"x {row['ratio']:.3f} +- {error}, fastest turns x {row['fastest']:.3f}"
        print(f"{row['loss']:44s} {times}  {ratios}")


class Worker:
    """A process with two versions of the library, numbered as they are loaded."""

    def __init__(self, sources: list[Path], device: str, quick: bool) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "benchmarks.commits.worker", device, *map(str, sources)]
        self.process = subprocess.Popen(
            command + (["quick"] if quick else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ALLOCATOR, "PYTHONPATH": path},
        )
        self.losses: list[str] = self._answer()

    def seconds(self, version: int, name: str, steps: int) -> float:
        """Seconds per step of one loss of a version, 0 or 1 in the order of loading."""
        assert self.process.stdin is not None
        print(json.dumps([version, name, steps]), file=self.process.stdin, flush=True)
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
        with self.process:  # closes the pipes
            self.process.kill()


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

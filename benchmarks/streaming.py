"""Throughput and memory of training from a parquet file, against the same rows in memory.

A table of normal numbers with eleven columns is written, and the network of the demo is trained on
it by sliced score matching, with standardised columns, in two processes: one reads the file, the
other has the rows as a tensor. They take turns on one core, some hundred steps each: a process is
stopped, with its thread that reads ahead, while the other one runs. So both meet the same load of
the machine, and what reading costs is counted where it belongs, in wall and in CPU time.

Example:
    python -m benchmarks.streaming --gigabytes 4
    python -m benchmarks.streaming --smoke
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

import scorematching as sm
from benchmarks.harness.command import Docs, Output, Smoke, command_line, run_command
from benchmarks.harness.provenance import stamp
from benchmarks.pages import streaming as page
from benchmarks.pages.parts import publish
from scorematching.training import Callback, Stream, TrainConfig, open_stream, train

PROGRAM = "python -m benchmarks.streaming"
DIM, GROUP, BATCH = 11, 65_536, 128
"""Columns, as in the demo; rows of a row group; rows of a batch."""

Gigabytes = Annotated[
    float, typer.Option(min=0.01, help="Size of the file, in units of 1e9 bytes.")
]
Steps = Annotated[int, typer.Option(min=10, help="Training steps of each process in one turn.")]
Rounds = Annotated[int, typer.Option(min=2, help="Turns of each process.")]
Folder = Annotated[Path | None, typer.Option(help="Where the file is written; removed at the end.")]


def measure(
    gigabytes: Gigabytes = 4.0,
    steps: Steps = 250,
    rounds: Rounds = 80,
    smoke: Smoke = False,
    folder: Folder = None,
    output: Output = None,
    docs: Docs = None,
) -> Path | None:
    """Measure training from a parquet file: memory, and throughput against a tensor."""
    if smoke:
        gigabytes, steps, rounds = 0.02, 20, 3
    command = command_line(PROGRAM, measure, locals())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "numbers.parquet"
        written = write_table(path, gigabytes)
        turns = in_turn(path, steps, rounds, Path(place))
    packages = ("torch", "numpy", "pyarrow", "scorematching")
    document = {**stamp(command, packages=packages), **written, **turns, "steps": steps}
    print(page.sentence(document))
    if smoke and output is None:
        return None
    return publish(document, "streaming", output, docs, page.write)


def write_table(path: Path, gigabytes: float) -> dict[str, Any]:
    """Write correlated normal numbers, a row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    mix = np.eye(DIM) + 0.3 * generator.normal(size=(DIM, DIM))
    names, rows = [f"x{i}" for i in range(DIM)], 0
    with pq.ParquetWriter(path, pa.schema([(name, pa.float64()) for name in names])) as writer:
        while rows == 0 or path.stat().st_size < gigabytes * 1e9:
            x = generator.normal(size=(GROUP, DIM)) @ mix
            writer.write_table(pa.table(dict(zip(names, x.T))), row_group_size=GROUP)
            rows += GROUP
    return {"bytes": path.stat().st_size, "rows": rows, "dim": DIM, "rows_per_group": GROUP}


def in_turn(path: Path, steps: int, rounds: int, place: Path) -> dict[str, Any]:
    """The numbers of both processes, which run in turn and stop themselves after each."""
    words = [sys.executable, "-m", "benchmarks.streaming", "--part"]
    running = {
        name: subprocess.Popen(
            [*words, name, str(path), f"{steps}", f"{rounds}", str(place / name)]
        )
        for name in ("stream", "tensor")
    }
    try:
        for process in running.values():
            wait_until_stopped(process)  # when they have read what they need
        for process in [*running.values()] * rounds:
            os.kill(process.pid, signal.SIGCONT)
            wait_until_stopped(process)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    found = {name: json.loads((place / name).read_text()) for name in running}
    found["tensor"].pop("about")
    return {**found["stream"].pop("about"), **found}


def wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process stops itself."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise RuntimeError(f"a process ended with status {status}; see its error above")


def run_part(name: str, path: Path, steps: int, rounds: int, output: Path) -> None:
    """Train from the file, or from a tensor, and stop after every turn; write the numbers."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    about: dict[str, Any] = {"imported_bytes": peak()}
    began = time.perf_counter()
    stream = open_stream(path)
    scale = stream.standardise()
    about["pass_seconds"] = time.perf_counter() - began
    about["blocks_per_window"] = stream.blocks_per_window
    turns = Turns(steps)
    fit(stream if name == "stream" else in_memory(stream), scale, steps * rounds, turns)
    about["peak_bytes"] = peak()
    output.write_text(json.dumps({"about": about, "wall": turns.wall, "cpu": turns.cpu}))
    os.kill(os.getpid(), signal.SIGSTOP)


class Turns(Callback):
    """Stops the process before the first step and after every turn; keeps the times of turns.

    Args:
        steps: of a turn.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def on_start(self, state: Any) -> None:
        """Wait for the first turn."""
        self._wait()

    def on_step(self, state: Any) -> None:
        """Keep the times of a turn, and wait for the next."""
        if state.step % self.steps:
            return
        self.wall.append(time.perf_counter() - self.began[0])
        self.cpu.append(time.process_time() - self.began[1])
        if state.step < state.total:
            self._wait()

    def _wait(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        self.began = time.perf_counter(), time.process_time()


def in_memory(stream: Stream) -> Tensor:
    """All rows, as one tensor."""
    x, done = torch.empty(len(stream), *stream.event), 0
    for block in range(len(stream.source.sizes)):
        rows = stream.source.read(block)
        x[done : done + len(rows)] = rows
        done += len(rows)
    return x


def fit(data: Any, scale: Any, steps: int, turns: Callback) -> None:
    """Train the demo's network."""
    weights = torch.Generator().manual_seed(0)
    model = sm.models.MLPDensity(DIM, hidden=(512,), generator=weights)
    settings = {"lr": 5e-3, "schedule": "cosine", "max_norm": 10.0, "ema_decay": 0.99}
    config = TrainConfig(steps=steps, batch_size=BATCH, **settings)  # type: ignore[arg-type]
    train(
        model,
        sm.SlicedScoreMatchingVR(),
        data,
        config,
        transform=lambda x, generator: scale(x),
        callbacks=[turns],
        generator=torch.Generator().manual_seed(1),
    )


def peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        part, table, steps, rounds, output = sys.argv[2:]
        run_part(part, Path(table), int(steps), int(rounds), Path(output))
    else:
        run_command(measure, f"{PROGRAM} --gigabytes 4")

"""Throughput and memory of training from a parquet file, against the same rows in memory.

A table of normal numbers with eleven columns is written, and the network of the demo is trained on
it by sliced score matching, with standardised columns: in a process of its own, whose memory is
recorded, and in another one in turn with the same rows as a tensor, which gives the throughputs.

Example:
    python -m benchmarks.streaming --gigabytes 4
    python -m benchmarks.streaming --smoke
"""

from __future__ import annotations

import json
import resource
import statistics
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
from scorematching.training import Stream, TrainConfig, open_stream, train

PROGRAM = "python -m benchmarks.streaming"
DIM, GROUP = 11, 65_536
"""Columns, as in the demo; and rows of a row group."""

Gigabytes = Annotated[
    float, typer.Option(min=0.01, help="Size of the file, in units of 1e9 bytes.")
]
Steps = Annotated[int, typer.Option(min=10, help="Training steps of one measurement.")]
Rounds = Annotated[int, typer.Option(min=1, help="Measurements of each kind.")]
Folder = Annotated[Path | None, typer.Option(help="Where the file is written; removed at the end.")]


def measure(
    gigabytes: Gigabytes = 4.0,
    steps: Steps = 20_000,
    rounds: Rounds = 3,
    smoke: Smoke = False,
    folder: Folder = None,
    output: Output = None,
    docs: Docs = None,
) -> Path | None:
    """Measure training from a parquet file: memory, and throughput against a tensor."""
    if smoke:
        gigabytes, steps, rounds = 0.02, 50, 2
    command = command_line(PROGRAM, measure, locals())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "numbers.parquet"
        written = write_table(path, gigabytes)
        alone = in_process("alone", path, steps, rounds)
        both = in_process("both", path, steps, rounds)
    document = {
        **stamp(command, packages=("torch", "numpy", "pyarrow", "scorematching")),
        **written,
        **alone,
        **both,
        "steps": steps,
        "ratio": statistics.median(
            fast / slow for fast, slow in zip(both["stream"], both["tensor"])
        ),
    }
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


def in_process(part: str, path: Path, steps: int, rounds: int) -> dict[str, Any]:
    """The numbers of a part, from a process of its own."""
    words = ["-m", "benchmarks.streaming", "--part", part, str(path), str(steps), str(rounds)]
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def alone(path: Path, steps: int, rounds: int) -> dict[str, Any]:
    """Memory of a process that standardises and trains from the file."""
    imported = peak()
    began = time.perf_counter()
    stream = open_stream(path)
    scale = stream.standardise()
    opened = time.perf_counter() - began
    fit(stream, scale, steps)
    return {
        "peak_bytes": peak(),
        "imported_bytes": imported,
        "pass_seconds": opened,
        "blocks_per_window": stream.blocks_per_window,
    }


def both(path: Path, steps: int, rounds: int) -> dict[str, Any]:
    """Points per second from the file and from memory, in turn."""
    stream = open_stream(path)
    scale, x = stream.standardise(), in_memory(stream)
    fit(x, scale, 50)
    found: dict[str, list[float]] = {"stream": [], "tensor": []}
    for _ in range(rounds):
        found["stream"].append(fit(stream, scale, steps))
        found["tensor"].append(fit(x, scale, steps))
    return found


def in_memory(stream: Stream) -> Tensor:
    """All rows, as one tensor."""
    x, done = torch.empty(len(stream), *stream.event), 0
    for block in range(len(stream.source.sizes)):
        rows = stream.source.read(block)
        x[done : done + len(rows)] = rows
        done += len(rows)
    return x


def fit(data: Any, scale: Any, steps: int) -> float:
    """Train the demo's network; returns points per second, the first read of the file included."""
    weights = torch.Generator().manual_seed(0)
    model = sm.models.MLPDensity(DIM, hidden=(512,), generator=weights)
    settings = {"lr": 5e-3, "schedule": "cosine", "max_norm": 10.0, "ema_decay": 0.99}
    config = TrainConfig(steps=steps, **settings)  # type: ignore[arg-type]
    result = train(
        model,
        sm.SlicedScoreMatchingVR(),
        data,
        config,
        transform=lambda x, generator: scale(x),
        generator=torch.Generator().manual_seed(1),
    )
    return result.points_per_second


def peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        torch.set_num_threads(1)
        parts = {"alone": alone, "both": both}
        print(json.dumps(parts[sys.argv[2]](Path(sys.argv[3]), *map(int, sys.argv[4:]))))
    else:
        run_command(measure, f"{PROGRAM} --gigabytes 4")

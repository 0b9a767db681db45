"""Cells in parallel processes, and the file of their results."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.density.measure import cell
from benchmarks.harness.provenance import stamp

SLOW_FIRST = (
    "digits",
    "breast cancer",
    "benign tumours",
    "red wine",
    "autoregression",
    "digits, 12 components",
    "classes",
    "five blobs",
    "lognormal",
)
"""Tables with many columns, whose cells take longest and are started first."""

Key = tuple[str, int]
Cell = dict[str, Any]


def run(
    wanted: list[Key],
    lines: Path,
    jobs: int,
    settings: dict[str, Any],
    seconds: float | None = None,
) -> list[Cell]:
    """The cells that were asked for, those of the file and new ones, in order.

    Args:
        wanted: tables and seeds.
        lines: file of results, one on each line; every new one is appended at once.
        jobs: processes.
        settings: of `DensityEstimator`.
        seconds: after this time no cell is begun; those that run are finished. None is no limit.
    """
    found = read(lines)
    todo = [key for key in wanted if key not in found]
    todo.sort(key=lambda key: SLOW_FIRST.index(key[0]) if key[0] in SLOW_FIRST else 99)
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=one_thread) as pool:
        place = where()
        for key, result in _results(pool, todo, jobs, settings, end):
            result["where"] = place
            append(result, lines)
            found[key] = result
            print(line(result), flush=True)
    return [found[key] for key in wanted if key in found]


def _results(
    pool: ProcessPoolExecutor, todo: list[Key], jobs: int, settings: dict[str, Any], end: float
) -> Iterator[tuple[Key, Cell]]:
    """Results as they come; as many cells run as there are processes, none is begun after end."""
    waiting = iter(todo)
    tasks: dict[Future[Cell], Key] = {}
    while True:
        for key in itertools.islice(waiting, jobs - len(tasks) if time.monotonic() < end else 0):
            tasks[pool.submit(cell, *key, settings)] = key
        if not tasks:
            return
        for task in wait(tasks, return_when=FIRST_COMPLETED).done:
            yield tasks.pop(task), task.result()


def where() -> str:
    """Commit, machine and torch; cells of one file may have been measured in several places."""
    found = stamp("")
    return f"commit {found['commit'][:10]}, {found['device']}, torch {found['versions']['torch']}"


def append(result: Cell, lines: Path) -> None:
    """Add a line to the file; an incomplete one before it is ended first."""
    whole = not lines.exists() or lines.read_bytes()[-1:] in (b"", b"\n")
    with lines.open("a") as file:
        file.write(("" if whole else "\n") + json.dumps(result) + "\n")


def read(lines: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Results that are there already; an incomplete last line is left out."""
    found = {}
    for text in lines.read_text().splitlines() if lines.exists() else []:
        try:
            result = json.loads(text)
        except json.JSONDecodeError:
            continue
        found[result["table"], result["seed"]] = result
    return found


def one_thread() -> None:
    """One thread for every library of this process."""
    import threadpoolctl

    torch.set_num_threads(1)
    threadpoolctl.threadpool_limits(1)


def line(result: dict[str, Any]) -> str:
    """Log-likelihoods of a cell on one line."""
    values = ", ".join(
        f"{name} {row['log_density']:.2f}" if "log_density" in row else f"{name} failed"
        for name, row in result["methods"].items()
    )
    return f"{result['table']}, seed {result['seed']}: {values}"

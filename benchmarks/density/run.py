"""Cells in parallel processes, and the file of their results."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.density.measure import cell

SLOW_FIRST = ("digits", "breast cancer", "benign tumours", "red wine", "five blobs")


def run(
    wanted: list[tuple[str, int]], lines: Path, jobs: int, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """The cells that were asked for, those of the file and new ones, in order."""
    found = read(lines)
    todo = [key for key in wanted if key not in found]
    todo.sort(key=lambda key: SLOW_FIRST.index(key[0]) if key[0] in SLOW_FIRST else 99)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=one_thread)
    with pool, lines.open("a") as file:
        tasks = {pool.submit(cell, *key, settings): key for key in todo}
        for task in as_completed(tasks):
            result = task.result()
            file.write(json.dumps(result) + "\n")
            file.flush()
            found[tasks[task]] = result
            print(line(result), flush=True)
    return [found[key] for key in wanted]


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

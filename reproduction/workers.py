"""Processes that do runs: their settings, a pool of them, and one rule for errors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")

Outcome = Any
"""The result of a task, or the `Exception` it raised."""


def prepare(threads: int | None) -> None:
    """Set the threads of this process, and on a GPU tf32 for products of float32 matrices.

    Args:
        threads: CPU threads of torch; None leaves them as they are.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")


def attempt(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """Call a function; return its result, or the `Exception` it raises.

    An interruption (`KeyboardInterrupt`, `SystemExit`) is raised as usual.
    """
    try:
        return function(*arguments)
    except Exception as error:
        return error


def in_processes(
    function: Callable[[Task], Any], tasks: Sequence[Task], workers: int
) -> Iterator[tuple[Task, Outcome]]:
    """Call a function for every task, in several processes of one thread each.

    Args:
        function: what to call; it and its tasks are pickled.
        tasks: its arguments.
        workers: number of processes.

    Yields:
        Each task with its outcome, in the order in which they end.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, prepare, (1,)) as pool:
        waiting = {pool.submit(function, task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                yield waiting[done], attempt(done.result)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

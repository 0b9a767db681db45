"""Settings of a process that exists to do runs, and a pool of such processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")


def prepare(threads: int | None) -> None:
    """Set up this process: its threads, and products of float32 matrices in tf32 on a GPU.

    Args:
        threads: of torch on the CPU; None leaves them alone.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")


def in_processes(
    function: Callable[[Task], Any], tasks: Sequence[Task], workers: int
) -> Iterator[tuple[Task, Any, BaseException | None]]:
    """Every task with its result or its error, as they end, several at a time.

    Args:
        function: what to do; it and its tasks are pickled.
        tasks: what to do it with.
        workers: how many processes, of one thread each.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, prepare, (1,)) as pool:
        waiting = {pool.submit(function, task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                error = done.exception()
                yield waiting[done], None if error else done.result(), error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

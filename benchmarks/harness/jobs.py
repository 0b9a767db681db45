"""Independent tasks in several processes, one thread each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Any

import torch
import typer

Jobs = Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")]


def run_tasks(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int
) -> list[Any]:
    """The results of ``function(*task)`` for every task, in their order.

    Args:
        function: of a module's top level.
        tasks: arguments.
        jobs: number of processes; 1 stays in this process.
    """
    if jobs == 1:
        return [function(*task) for task in tasks]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as pool:
        return list(pool.map(function, *zip(*tasks)))

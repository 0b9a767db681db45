"""Processes that do runs: their settings, a pool of them, and one rule for errors."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
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


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 matrices without tf32; afterwards the setting is as before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def timed_convolutions() -> Iterator[None]:
    """On a GPU, each convolution by the algorithm that is fastest when tried first.

    Afterwards the setting is as before. Algorithms sum in different orders, so that digits of two
    runs may differ by rounding, as they do with atomic additions.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


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
) -> Generator[tuple[Task, Outcome], None, None]:
    """Call a function for every task, in several processes of one thread each.

    Ctrl-C interrupts the tasks that are being done, each of which may write a checkpoint, and no
    others are begun.

    Args:
        function: what to call; it and its tasks are pickled.
        tasks: its arguments.
        workers: number of processes.

    Yields:
        Each task with its outcome, in the order in which they end.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare_worker) as pool:
        waiting = {pool.submit(_interruptible, function, task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                yield waiting[done], attempt(done.result)
        except (KeyboardInterrupt, GeneratorExit):  # here, or where the outcomes are used
            _interrupt_children()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    prepare(threads=1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between tasks


def _interruptible(function: Callable[[Task], Any], task: Task) -> Any:
    """A task of a worker, which Ctrl-C interrupts; an interrupted worker begins no other.

    A pool hands out tasks ahead of time and cannot take them back. The handler tells an
    interrupted worker from others.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        raise KeyboardInterrupt
    _free_memory()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = function(task)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise
    except Exception:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return result


def _free_memory() -> None:
    """Give back the memory of the task before, which other processes on a GPU could use.

    Models and their optimisers refer to each other, compiled code is kept for further calls, and
    torch keeps what it has allocated.
    """
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _interrupt_children() -> None:
    """Pass a Ctrl-C on; one that was typed in a terminal has reached all processes already."""
    for child in multiprocessing.active_children():
        if child.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGINT)

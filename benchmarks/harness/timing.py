"""Time and memory of steps: interleaved rounds, medians, and peak allocation."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

Step = Callable[[], Any]
Clock = Callable[[], float]
"""Seconds since some moment."""


def interleaved(
    steps: Sequence[Step],
    rounds: int,
    warmup: int,
    device: str,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> list[dict[str, Any]]:
    """Time all steps in turn, so that a slow period of the machine affects all of them.

    In every round each step runs twice, in an order shuffled anew, and the second time counts: in
    training, too, the step before was the same one, while the first run finds the caches full of
    another step's data. A step of more than half a second runs once. On a CPU only the half of
    the rounds counts in which other processes used the least processor time.

    Args:
        steps: functions to time.
        rounds: how often each is timed.
        warmup: rounds before those, which do not count.
        device: "cpu" or "cuda".
        seed: of the order.
        clock: of a CPU; ``time.process_time`` leaves out the time of other processes.

    Returns:
        For every step the median, the quartiles and the number of rounds that count, in seconds.
    """
    order, shuffle = list(range(len(steps))), random.Random(seed)
    seconds, others = np.empty((rounds, len(steps))), np.empty(rounds)
    for i in range(-warmup, rounds):
        shuffle.shuffle(order)
        before = _others_seconds()
        times = {k: _turn(steps[k], device, clock) for k in order}
        if i >= 0:
            seconds[i] = [times[k] for k in range(len(steps))]
            others[i] = (_others_seconds() - before) / seconds[i].sum()
    quiet = others <= np.median(others) if device == "cpu" else others < np.inf
    return [summary(column) for column in seconds[quiet].T]


def _turn(step: Step, device: str, clock: Clock) -> float:
    """The second of two times of a step; the first if it is long."""
    first = seconds_of(step, device, clock)
    return first if first > 0.5 else seconds_of(step, device, clock)


def seconds_of(step: Step, device: str, clock: Clock = time.perf_counter) -> float:
    """The time of one step, until all its work on the device is done."""
    return _cuda_seconds(step) if device == "cuda" else _cpu_seconds(step, clock)


def summary(seconds: Any) -> dict[str, Any]:
    """Median and quartiles of times."""
    q25, median, q75 = np.quantile(seconds, [0.25, 0.5, 0.75])
    return {
        "median": float(median),
        "q25": float(q25),
        "q75": float(q75),
        "rounds": len(seconds),
    }


def peak_bytes(step: Step, device: str) -> int:
    """The peak memory of one step, in addition to what was allocated before it."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with (
        _silent_stderr(),
        torch.profiler.profile(activities=cpu, profile_memory=True) as profile,
    ):
        step()
    return _peak_of(profile)


def _peak_of(profile: Any) -> int:
    """The largest running sum of the allocator's events, in order of time."""
    events = profile.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    sizes = [size for _, size in sorted(changes, key=lambda change: change[0])]
    return int(np.cumsum(sizes).max(initial=0))


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard stderr: the profiler writes two lines to it whenever it is used."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


def _others_seconds() -> float:
    """Processor time of all other processes since the machine started; zero if unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen, *_ = map(
        int, stat.read_text().split("\n", 1)[0].split()[1:]
    )
    busy = user + nice + system + interrupts + soft + stolen
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()


def _cpu_seconds(step: Step, clock: Clock) -> float:
    start = clock()
    step()
    return clock() - start


def _cuda_seconds(step: Step) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3

"""Examine operations, in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from tests.opinfo.forms import operations
from tests.opinfo.judge import BAD, Found, examine


def run(numbers: Sequence[int], jobs: int = 1) -> list[Found]:
    """Examine operations by their numbers in `operations`, printing bad outcomes as they come."""
    found: list[Found] = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done, new in enumerate(pool.map(_examine_number, numbers), 1):
            for f in new:
                if f.outcome in BAD:
                    print(f"{f.outcome:16} {f.name:36} {f.form:9} {f.note}", flush=True)
            if done % 50 == 0:
                print(f"{done} of {len(numbers)} operations", flush=True)
            found += new
    return found


def _examine_number(number: int) -> list[Found]:
    torch.set_num_threads(1)
    return examine(operations()[number])

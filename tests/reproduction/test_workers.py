"""Processes that do runs."""

from __future__ import annotations

import gc
import weakref

from reproduction.workers import in_processes

_MADE: list[weakref.ref[_Cycle]] = []


class _Cycle:
    """An object that refers to itself, which only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def _alive_before(task: int) -> int:
    """How many objects of earlier tasks of this process are alive; makes another."""
    gc.disable()  # otherwise it might run by chance
    alive = sum(made() is not None for made in _MADE)
    _MADE.append(weakref.ref(_Cycle()))
    return alive


def test_a_task_begins_without_the_memory_of_the_one_before() -> None:
    outcomes = dict(in_processes(_alive_before, [0, 1, 2], workers=1))
    assert outcomes == {0: 0, 1: 0, 2: 0}


def test_the_object_of_that_test_outlives_its_task_without_help() -> None:
    _MADE.clear()
    enabled = gc.isenabled()
    try:
        assert [_alive_before(task) for task in range(3)] == [0, 1, 2]
    finally:
        _MADE.clear()
        if enabled:
            gc.enable()

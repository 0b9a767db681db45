"""The door to Triton, which comes with torch for GPUs, and which takes a moment to import."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def is_available() -> bool:
    """Whether there is Triton."""
    return importlib.util.find_spec("triton") is not None


@cache
def program(function: Callable[..., None], *parts: Callable[..., Any]) -> Any:
    """A function in the language of Triton, ready to be compiled for the device at hand.

    The function knows that language as ``tl``, which is None in its module until it is set here:
    when a program is first run, so that nobody waits for it before.

    Args:
        function: the program.
        parts: functions of its module that it calls, by their names without the underscore in
            front: programs can only call programs, which is what those names become.
    """
    triton = importlib.import_module("triton")
    function.__globals__["tl"] = importlib.import_module("triton.language")
    function.__globals__.update({p.__name__.lstrip("_"): triton.jit(p) for p in parts})
    return triton.jit(function)

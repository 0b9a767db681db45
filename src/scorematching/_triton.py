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
def program(function: Callable[..., None]) -> Any:
    """A function in the language of Triton, ready to be compiled for the device at hand.

    The function knows that language as ``tl``, which is None in its module until it is set here:
    when a program is first run, so that nobody waits for it before.
    """
    function.__globals__["tl"] = importlib.import_module("triton.language")
    return importlib.import_module("triton").jit(function)

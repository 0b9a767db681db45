"""Triton, imported at first use; it comes with torch for GPUs."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def is_available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def program(function: Callable[..., None], *parts: Callable[..., Any]) -> Any:
    """A Triton kernel from a Python function.

    Sets ``tl`` in the function's module to ``triton.language``, so that Triton is imported when a
    kernel is first run.

    Args:
        function: the kernel.
        parts: functions of its module that it calls by their names without the leading underscore;
            Triton kernels can only call functions compiled by Triton, which are set here.
    """
    triton = importlib.import_module("triton")
    function.__globals__["tl"] = importlib.import_module("triton.language")
    function.__globals__.update({p.__name__.lstrip("_"): triton.jit(p) for p in parts})
    return triton.jit(function)

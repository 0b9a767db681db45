"""The door to Triton, which comes with torch for GPUs: programs are compiled when first run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

tl: Any = importlib.import_module("triton.language") if importlib.util.find_spec("triton") else None
"""The language of programs; None where there is no Triton."""


@cache
def program(function: Callable[..., None]) -> Any:
    """A function in that language, ready to be compiled for the device at hand."""
    return importlib.import_module("triton").jit(function)

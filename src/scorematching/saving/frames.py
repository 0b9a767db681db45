"""The class of data frames, which an estimator that was fitted to one returns samples as."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def is_frame(value: Any) -> bool:
    """Whether a value is the class of pandas' data frames."""
    names = (getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
    return (
        isinstance(value, type) and names[0].split(".")[0] == "pandas" and names[1] == "DataFrame"
    )


def find_frame() -> Any:
    """The class of pandas' data frames.

    Raises:
        ImportError: if pandas is not installed.
    """
    try:
        return import_module("pandas").DataFrame
    except ImportError as error:
        raise ImportError(
            "folder must hold an estimator of arrays where pandas is not installed, got one that "
            "was fitted to a data frame; pip install pandas"
        ) from error

"""Inference: models of dependence and their parameters, fitted to a table of points."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scorematching.inference.graphical import GraphicalModel

__all__ = ["GraphicalModel"]


def __getattr__(name: str) -> Any:
    """The estimator, whose scikit-learn takes a second to load, when it is first asked for."""
    if name in __all__:
        return getattr(import_module("scorematching.inference.graphical"), name)
    raise AttributeError(f"module 'scorematching.inference' has no attribute {name!r}")

"""Inference: parametric models fitted to a table of points, with standard errors and tests."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scorematching.errors import NotConvergedError, SingularInformationError
from scorematching.inference import models
from scorematching.inference.estimates import Estimates, NamedValues, WaldTest
from scorematching.inference.fitting import fit
from scorematching.inference.how_many import HowMany
from scorematching.inference.missing import ImportanceWeighted
from scorematching.inference.result import FitResult
from scorematching.inference.robust import fit_robust
from scorematching.inference.summary import Summary

if TYPE_CHECKING:
    from scorematching.inference.graphical import GraphicalModel

__all__ = [
    "Estimates",
    "FitResult",
    "GraphicalModel",
    "HowMany",
    "ImportanceWeighted",
    "NamedValues",
    "NotConvergedError",
    "SingularInformationError",
    "Summary",
    "WaldTest",
    "fit",
    "fit_robust",
    "models",
]


def __getattr__(name: str) -> Any:
    """The estimator, whose scikit-learn takes a second to load, when it is first asked for."""
    if name == "GraphicalModel":
        return import_module("scorematching.inference.graphical").GraphicalModel
    raise AttributeError(f"module 'scorematching.inference' has no attribute {name!r}")

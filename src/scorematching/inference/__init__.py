"""Inference: parametric models fitted to a table of points, with standard errors and tests."""

from scorematching.errors import NotConvergedError, SingularInformationError
from scorematching.inference import models
from scorematching.inference.estimates import Estimates, NamedValues, WaldTest
from scorematching.inference.fitting import fit
from scorematching.inference.how_many import HowMany
from scorematching.inference.missing import ImportanceWeighted
from scorematching.inference.result import FitResult
from scorematching.inference.robust import fit_robust
from scorematching.inference.summary import Summary

__all__ = [
    "Estimates",
    "FitResult",
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

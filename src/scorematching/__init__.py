"""Learn a density, or its score, from samples alone.

A projection gives directions; a field answers one question at points; an objective asks its
question and does arithmetic. Everything public is a log-density: larger is likelier.
"""

from scorematching import datasets, distributions, evaluation, models, training
from scorematching.capture import CapturedStep, compile_step
from scorematching.diagnostics import check_model, explain
from scorematching.errors import (
    DataNotFoundError,
    DivergedError,
    ScoreMatchingError,
    SmoothnessError,
)
from scorematching.fields import Field, LogDensityField, VectorField
from scorematching.objectives import (
    ApproximateBackprop,
    CurvaturePropagation,
    DenoisingScoreMatching,
    FiniteDifferenceSSM,
    MaximumLikelihood,
    NoiseContrastive,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    parzen_sigma,
)
from scorematching.projections import Gaussian, Projection, Rademacher, Sphere
from scorematching.types import Terms
from scorematching.variance import variance_report

__version__ = "0.1.0"

__all__ = [
    "ApproximateBackprop",
    "CapturedStep",
    "CurvaturePropagation",
    "DataNotFoundError",
    "DenoisingScoreMatching",
    "DivergedError",
    "Field",
    "FiniteDifferenceSSM",
    "Gaussian",
    "LogDensityField",
    "MaximumLikelihood",
    "NoiseContrastive",
    "Objective",
    "Projection",
    "Rademacher",
    "ScoreMatching",
    "ScoreMatchingError",
    "SlicedScoreMatching",
    "SlicedScoreMatchingVR",
    "SmoothnessError",
    "Sphere",
    "Terms",
    "VectorField",
    "check_model",
    "compile_step",
    "datasets",
    "distributions",
    "evaluation",
    "explain",
    "models",
    "parzen_sigma",
    "training",
    "variance_report",
]

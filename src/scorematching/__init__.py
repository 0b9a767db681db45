"""Learn a density, or its score, from samples alone.

A projection gives directions; a field answers one question at points; an objective asks its
question and does arithmetic. Everything public is a log-density: larger is likelier.
"""

# First, since the other imports take seconds.
import scorematching._program as _program  # isort: skip  # noqa: F401

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scorematching import (
    cluster,
    datasets,
    distributions,
    domains,
    evaluation,
    inference,
    models,
    samplers,
    training,
)
from scorematching.capture import CapturedStep, compile_step
from scorematching.diagnostics import check_model, explain, variance_report
from scorematching.entropy import entropy_surrogate
from scorematching.errors import (
    CheckpointError,
    DataNotFoundError,
    DivergedError,
    FolderInUseError,
    LostRankError,
    PerformanceWarning,
    SavedModelError,
    ScoreMatchingError,
    SmoothnessError,
    WrongDerivativeError,
)
from scorematching.fields import Field, LogDensityField, VectorField
from scorematching.objectives import (
    ApproximateBackprop,
    CurvaturePropagation,
    DenoisingScoreMatching,
    FiniteDifferenceSSM,
    LocalCurvatureSmoothing,
    MaximumLikelihood,
    NoiseContrastive,
    NoiseLadder,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    parzen_sigma,
)
from scorematching.projections import Gaussian, Projection, Rademacher, Sphere, SplitRademacher
from scorematching.saving import load, save
from scorematching.types import Terms

if TYPE_CHECKING:
    from scorematching import estimators, plot
    from scorematching.estimators import (
        DensityEstimator,
        KernelExpFamilyEstimator,
        SlicedScoreEstimator,
        SpectralScoreEstimator,
        SteinScoreEstimator,
    )

__version__ = "0.1.0"

__all__ = [
    "ApproximateBackprop",
    "CapturedStep",
    "CheckpointError",
    "CurvaturePropagation",
    "DataNotFoundError",
    "DenoisingScoreMatching",
    "DensityEstimator",
    "DivergedError",
    "Field",
    "FiniteDifferenceSSM",
    "FolderInUseError",
    "Gaussian",
    "KernelExpFamilyEstimator",
    "LocalCurvatureSmoothing",
    "LogDensityField",
    "LostRankError",
    "MaximumLikelihood",
    "NoiseContrastive",
    "NoiseLadder",
    "Objective",
    "PerformanceWarning",
    "Projection",
    "Rademacher",
    "SavedModelError",
    "ScoreMatching",
    "ScoreMatchingError",
    "SlicedScoreEstimator",
    "SlicedScoreMatching",
    "SlicedScoreMatchingVR",
    "SmoothnessError",
    "SpectralScoreEstimator",
    "Sphere",
    "SplitRademacher",
    "SteinScoreEstimator",
    "Terms",
    "VectorField",
    "WrongDerivativeError",
    "check_model",
    "cluster",
    "compile_step",
    "datasets",
    "distributions",
    "domains",
    "entropy_surrogate",
    "estimators",
    "evaluation",
    "explain",
    "inference",
    "load",
    "models",
    "parzen_sigma",
    "plot",
    "samplers",
    "save",
    "training",
    "variance_report",
]


def __getattr__(name: str) -> Any:
    """What takes time to load or is seldom needed, when it is first asked for."""
    if name in ("estimators", "plot"):
        return import_module(f"scorematching.{name}")
    if name in __all__:
        return getattr(import_module("scorematching.estimators"), name)
    raise AttributeError(f"module 'scorematching' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is, whether or not it has been asked for yet."""
    return [*__all__, "__version__"]

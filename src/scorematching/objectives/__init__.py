"""Objectives: what to minimise, one loss per point."""

from scorematching.objectives.base import Objective
from scorematching.objectives.contrastive import NoiseContrastive
from scorematching.objectives.denoising import DenoisingScoreMatching, NoiseLadder, parzen_sigma
from scorematching.objectives.exact import ScoreMatching
from scorematching.objectives.finite_difference import FiniteDifferenceSSM
from scorematching.objectives.layerwise import ApproximateBackprop, CurvaturePropagation
from scorematching.objectives.likelihood import MaximumLikelihood
from scorematching.objectives.local_curvature import LocalCurvatureSmoothing
from scorematching.objectives.sliced import SlicedScoreMatching, SlicedScoreMatchingVR

__all__ = [
    "ApproximateBackprop",
    "CurvaturePropagation",
    "DenoisingScoreMatching",
    "FiniteDifferenceSSM",
    "LocalCurvatureSmoothing",
    "MaximumLikelihood",
    "NoiseContrastive",
    "NoiseLadder",
    "Objective",
    "ScoreMatching",
    "SlicedScoreMatching",
    "SlicedScoreMatchingVR",
    "parzen_sigma",
]

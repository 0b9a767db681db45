"""Objectives by the names of the literature."""

from __future__ import annotations

from scorematching.objectives.base import Objective
from scorematching.objectives.denoising import DenoisingScoreMatching
from scorematching.objectives.exact import ScoreMatching
from scorematching.objectives.layerwise import ApproximateBackprop, CurvaturePropagation
from scorematching.objectives.likelihood import MaximumLikelihood
from scorematching.objectives.sliced import SlicedScoreMatching, SlicedScoreMatchingVR

NAMES: dict[str, type[Objective]] = {
    "SM": ScoreMatching,
    "SSM-VR": SlicedScoreMatchingVR,
    "SSM": SlicedScoreMatching,
    "DSM": DenoisingScoreMatching,
    "CP": CurvaturePropagation,
    "approximate BP": ApproximateBackprop,
    "MLE": MaximumLikelihood,
}
"""The names in the tables of Song et al. (2019). Where users type them, case does not matter."""

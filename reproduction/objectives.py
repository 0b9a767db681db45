"""The objectives that the paper compares, by the names of its tables."""

from __future__ import annotations

from scorematching.objectives import (
    ApproximateBackprop,
    CurvaturePropagation,
    DenoisingScoreMatching,
    MaximumLikelihood,
    Objective,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
)
from scorematching.projections import Rademacher

METHODS = ("SM", "SSM-VR", "SSM", "DSM", "CP", "approximate BP")
"""What fits an unnormalised density, in the paper's order."""


def objective(name: str, sigma: float = 0.1, balanced: bool = False) -> Objective:
    """An objective by name.

    Args:
        name: one of `METHODS`, or "MLE".
        sigma: noise of "DSM".
        balanced: for sliced objectives, directions that are orthogonal across the batch; the
            paper's are independent.

    Raises:
        ValueError: if the name is unknown.
    """
    signs = Rademacher(balanced=balanced)
    known = {
        "MLE": lambda: MaximumLikelihood(),
        "SM": lambda: ScoreMatching(),
        "SSM-VR": lambda: SlicedScoreMatchingVR(signs),
        "SSM": lambda: SlicedScoreMatching(signs),
        "DSM": lambda: DenoisingScoreMatching(sigma=sigma),
        "CP": lambda: CurvaturePropagation(),
        "approximate BP": lambda: ApproximateBackprop(),
    }
    if name not in known:
        raise ValueError(f"objective must be one of {', '.join(known)}, got {name!r}")
    return known[name]()

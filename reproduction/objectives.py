"""The objectives that the paper compares, by the names of its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scorematching.objectives import Objective
from scorematching.objectives.names import NAMES
from scorematching.projections import Rademacher

METHODS = tuple(name for name in NAMES if name != "MLE")
"""The objectives for unnormalised densities, in the paper's order."""


def objective(
    name: str, sigma: float = 0.1, balanced: bool = False, projections: int = 1
) -> Objective:
    """An objective by name.

    Args:
        name: one of `METHODS`, or "MLE".
        sigma: noise of "DSM".
        balanced: for sliced objectives, directions that are orthogonal across the batch; the
            paper's are independent.
        projections: directions of each point, for sliced objectives.

    Raises:
        ValueError: if the name is unknown.
    """
    if name not in NAMES:
        raise ValueError(f"objective must be one of {', '.join(NAMES)}, got {name!r}; try SSM-VR")
    signs = Rademacher(balanced=balanced)
    settings: dict[str, dict[str, Any]] = {
        "DSM": {"sigma": sigma},
        "SSM": {"projection": signs, "num_projections": projections},
        "SSM-VR": {"projection": signs, "num_projections": projections},
    }
    make: Callable[..., Objective] = NAMES[name]
    return make(**settings.get(name, {}))

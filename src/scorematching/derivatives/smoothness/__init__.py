"""Whether a model is smooth enough, measured on the user's own model and points."""

from scorematching.derivatives.smoothness.measure import Measurement, measure
from scorematching.derivatives.smoothness.requirement import (
    require,
    require_trainable,
    require_whole,
)
from scorematching.derivatives.smoothness.search import FEW_POINTS

__all__ = ["FEW_POINTS", "Measurement", "measure", "require", "require_trainable", "require_whole"]

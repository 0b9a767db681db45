"""Whether a model is smooth enough, measured on the user's own model and points."""

from scorematching.derivatives.smoothness.measure import Measurement, measure
from scorematching.derivatives.smoothness.requirement import require, require_whole

__all__ = ["Measurement", "measure", "require", "require_whole"]

"""Models: log-densities and score networks."""

from scorematching.models.networks import MLPDensity, ScoreNetwork
from scorematching.models.nice import NICE

__all__ = ["NICE", "MLPDensity", "ScoreNetwork"]

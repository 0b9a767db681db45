"""Models: log-densities and score networks."""

from scorematching.models.dkef import DKEF, GeneralisedGaussian
from scorematching.models.networks import MLPDensity, ScoreNetwork
from scorematching.models.nice import NICE

__all__ = ["DKEF", "NICE", "GeneralisedGaussian", "MLPDensity", "ScoreNetwork"]

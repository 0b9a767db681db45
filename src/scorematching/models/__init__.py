"""Models: log-densities and score networks."""

from scorematching.models.networks import MLPDensity, ScoreNetwork

__all__ = ["MLPDensity", "ScoreNetwork"]

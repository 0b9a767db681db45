"""Models: log-densities, score networks and auto-encoders."""

from scorematching.distributions.bases import GeneralisedGaussian
from scorematching.models.autoencoders import VAE, WAE, BernoulliPixels, ImplicitVAE, NormalPixels
from scorematching.models.dkef import DKEF
from scorematching.models.networks import ConditionalMLP, MLPDensity, ScoreNetwork
from scorematching.models.nice import NICE

__all__ = [
    "DKEF",
    "NICE",
    "VAE",
    "WAE",
    "BernoulliPixels",
    "ConditionalMLP",
    "GeneralisedGaussian",
    "ImplicitVAE",
    "MLPDensity",
    "NormalPixels",
    "ScoreNetwork",
]

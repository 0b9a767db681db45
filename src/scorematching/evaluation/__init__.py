"""Evaluation: numbers about a fitted model, each with its standard error."""

from scorematching.distributions.observations import BernoulliPixels, NormalPixels
from scorematching.evaluation.ais import Annealing, Bracket, ais, bidirectional
from scorematching.evaluation.decoders import (
    DecoderLikelihood,
    decoder_bracket,
    decoder_log_likelihood,
)
from scorematching.evaluation.fid import (
    FeatureMoments,
    feature_moments,
    frechet_distance,
    kernel_distance,
)
from scorematching.evaluation.inception import inception
from scorematching.evaluation.losses import (
    Estimate,
    compare,
    fisher_divergence,
    score_matching_loss,
    score_matching_losses,
    sliced_fisher_divergence,
)
from scorematching.evaluation.normaliser import (
    AnnealedLogZ,
    LogLikelihood,
    LogZEstimate,
    ais_log_z,
    importance_log_z,
    log_likelihood,
)

__all__ = [
    "AnnealedLogZ",
    "Annealing",
    "BernoulliPixels",
    "Bracket",
    "DecoderLikelihood",
    "Estimate",
    "FeatureMoments",
    "LogLikelihood",
    "LogZEstimate",
    "NormalPixels",
    "ais",
    "ais_log_z",
    "bidirectional",
    "compare",
    "decoder_bracket",
    "decoder_log_likelihood",
    "feature_moments",
    "fisher_divergence",
    "frechet_distance",
    "importance_log_z",
    "inception",
    "kernel_distance",
    "log_likelihood",
    "score_matching_loss",
    "score_matching_losses",
    "sliced_fisher_divergence",
]

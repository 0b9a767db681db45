"""Evaluation: numbers about a fitted model, each with its standard error."""

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
    "Estimate",
    "LogLikelihood",
    "LogZEstimate",
    "ais_log_z",
    "compare",
    "fisher_divergence",
    "importance_log_z",
    "log_likelihood",
    "score_matching_loss",
    "score_matching_losses",
    "sliced_fisher_divergence",
]

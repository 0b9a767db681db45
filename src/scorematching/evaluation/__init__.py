"""Evaluation: numbers about a fitted model, each with its standard error."""

from scorematching.evaluation.losses import (
    Estimate,
    compare,
    fisher_divergence,
    score_matching_loss,
    score_matching_losses,
    sliced_fisher_divergence,
)

__all__ = [
    "Estimate",
    "compare",
    "fisher_divergence",
    "score_matching_loss",
    "score_matching_losses",
    "sliced_fisher_divergence",
]

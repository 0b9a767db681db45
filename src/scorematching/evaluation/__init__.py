"""Evaluation of fitted models, with standard errors."""

from scorematching.distributions.observations import BernoulliPixels, NormalPixels
from scorematching.evaluation.compare import Comparison, compare
from scorematching.evaluation.estimate import Estimate, paired_difference
from scorematching.evaluation.fid.distances import (
    FeatureMoments,
    feature_moments,
    frechet_distance,
    kernel_distance,
)
from scorematching.evaluation.fid.inception import inception
from scorematching.evaluation.ksd.control_variates import ControlledMean, control_variate
from scorematching.evaluation.ksd.discrepancy import kernel_stein_discrepancy
from scorematching.evaluation.ksd.hypotheses import Fitted, Fixed, Split
from scorematching.evaluation.ksd.testing import KSDTest, ksd_test
from scorematching.evaluation.ksd.thinning import stein_thin
from scorematching.evaluation.log_z.ais import Annealing, Bracket, ais, bidirectional
from scorematching.evaluation.log_z.annealed import AnnealedLogZ, ais_log_z
from scorematching.evaluation.log_z.decoders import (
    DecoderLikelihood,
    decoder_bracket,
    decoder_log_likelihood,
)
from scorematching.evaluation.log_z.importance import LogZEstimate, importance_log_z
from scorematching.evaluation.log_z.likelihood import LogLikelihood, log_likelihood
from scorematching.evaluation.log_z.modes import (
    importance_bracket,
    importance_log_likelihood,
)
from scorematching.evaluation.losses import (
    fisher_divergence,
    score_matching_loss,
    score_matching_losses,
    sliced_fisher_divergence,
)

__all__ = [
    "AnnealedLogZ",
    "Annealing",
    "BernoulliPixels",
    "Bracket",
    "Comparison",
    "ControlledMean",
    "DecoderLikelihood",
    "Estimate",
    "FeatureMoments",
    "Fitted",
    "Fixed",
    "KSDTest",
    "LogLikelihood",
    "LogZEstimate",
    "NormalPixels",
    "Split",
    "ais",
    "ais_log_z",
    "bidirectional",
    "compare",
    "control_variate",
    "decoder_bracket",
    "decoder_log_likelihood",
    "feature_moments",
    "fisher_divergence",
    "frechet_distance",
    "importance_bracket",
    "importance_log_likelihood",
    "importance_log_z",
    "inception",
    "kernel_distance",
    "kernel_stein_discrepancy",
    "ksd_test",
    "log_likelihood",
    "paired_difference",
    "score_matching_loss",
    "score_matching_losses",
    "sliced_fisher_divergence",
    "stein_thin",
]

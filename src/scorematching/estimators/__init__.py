"""Score estimators: fast functions on batches of tensors, scikit-learn classes on top."""

from scorematching.estimators.base import ScoreEstimator
from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.kernel_exp_family import (
    KernelExpFamilyEstimator,
    fit_kernel_exp_family,
    kernel_exp_family_score,
)
from scorematching.estimators.kernel_space import KernelExpFamily
from scorematching.estimators.nu_method import fit_nu_method
from scorematching.estimators.sliced import SlicedScoreEstimator
from scorematching.estimators.spectral import (
    SpectralScore,
    SpectralScoreEstimator,
    fit_spectral,
    spectral_score,
)
from scorematching.estimators.stein import (
    SteinScore,
    SteinScoreEstimator,
    fit_stein,
    stein_score,
)

__all__ = [
    "DensityEstimator",
    "KernelExpFamily",
    "KernelExpFamilyEstimator",
    "ScoreEstimator",
    "SlicedScoreEstimator",
    "SpectralScore",
    "SpectralScoreEstimator",
    "SteinScore",
    "SteinScoreEstimator",
    "fit_kernel_exp_family",
    "fit_nu_method",
    "fit_spectral",
    "fit_stein",
    "kernel_exp_family_score",
    "spectral_score",
    "stein_score",
]

"""Score and density estimators with scikit-learn's methods.

The kernel estimates on batches of tensors, `fit_stein` and its relatives, are in
`scorematching.kernels`, and can be imported from here too.
"""

from scorematching.estimators.base import ScoreEstimator
from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.kernel import (
    KernelExpFamilyEstimator,
    SpectralScoreEstimator,
    SteinScoreEstimator,
)
from scorematching.estimators.sliced import SlicedScoreEstimator
from scorematching.kernels import (
    KernelExpFamily,
    SpectralScore,
    SteinScore,
    fit_kernel_exp_family,
    fit_nu_method,
    fit_spectral,
    fit_stein,
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
]

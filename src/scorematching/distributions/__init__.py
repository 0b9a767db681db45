"""Distributions whose log-density, score and samples are all exact.

==================  ===============================================================  ==========
distribution        definition                                                       dimensions
==================  ===============================================================  ==========
`Gaussian`          N(mean, covariance)                                              any
`GaussianMixture`   sum_k weights_k N(means_k, covariances_k)                        any
`Banana`            a Gaussian curved along a parabola, volume preserved             2 or more
`Funnel`            Neal's funnel: a normal that sets the variance of the others     2 or more
`Ring`              a ridge around a circle, smooth everywhere                       2 or more
`StudentT`          independent Student-t coordinates                                any
==================  ===============================================================  ==========

Every log-density here is normalised, so ``log_z`` is 0 throughout. A distribution is callable as
its log-density, hence is itself a model: ``ScoreMatching()(Gaussian(mean, covariance), x)``.
"""

from collections.abc import Callable

from scorematching.distributions.base import Distribution
from scorematching.distributions.curved import Banana, Funnel, Ring
from scorematching.distributions.gaussian import (
    Gaussian,
    GaussianMixture,
    standard_normal_log_density,
)
from scorematching.distributions.student_t import StudentT

__all__ = [
    "DISTRIBUTIONS",
    "Banana",
    "Distribution",
    "Funnel",
    "Gaussian",
    "GaussianMixture",
    "Ring",
    "StudentT",
    "standard_normal_log_density",
]

DISTRIBUTIONS: dict[str, Callable[[], Distribution]] = {
    "gaussian": lambda: Gaussian(
        mean=[1.0, -1.0, 0.5], covariance=[[2.0, 0.5, 0.0], [0.5, 1.0, -0.25], [0.0, -0.25, 0.5]]
    ),
    "mixture": lambda: GaussianMixture(
        weights=[0.5, 0.25, 0.25],
        means=[[-2.0, 0.0], [2.0, 1.5], [1.0, -2.0]],
        covariances=[[[1.0, 0.5], [0.5, 0.5]], [[0.5, 0.0], [0.0, 0.5]], [[0.25, 0.0], [0.0, 1.0]]],
    ),
    "banana": lambda: Banana(dim=2, curvature=0.5, scale=1.5),
    "funnel": lambda: Funnel(dim=5, scale=3.0),
    "ring": lambda: Ring(radius=2.0, width=0.25),
    "student_t": lambda: StudentT(dim=3, df=5.0, location=[0.0, 1.0, -1.0], scale=[1.0, 0.5, 2.0]),
}
"""Named defaults in two to five dimensions, built in torch's default dtype."""

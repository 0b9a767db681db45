"""Gaussian mixtures by scikit-learn's EM algorithm."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Learner
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.distributions import GaussianMixture
from scorematching.estimators.density.bases.seeds import draw_seed

_MAX_POINTS, _ITERATIONS = 10_000, 100

_LEAST_POINTS = 2.5
"""Of a component. One on a single outlier, or on two, makes them the likeliest points of all."""


def fit_mixture(
    x: Tensor,
    components: int,
    covariance: str = "full",
    ridge: float = 1e-6,
    generator: torch.Generator | None = None,
) -> GaussianMixture:
    """A mixture of normal distributions with a given number of components.

    Args:
        x: points ``(N, D)``, standardised or whitened; of more than 10,000 as many are taken.
        components: K, at most; those on one or two points are left out.
        covariance: "full", one for each component; "tied", one for all; or "diag".
        ridge: added to every variance. At whitened points it shrinks all covariances towards
            that of the whole table.
        generator: source of randomness; None is torch's default generator.

    Example:
        >>> x = torch.cat([torch.randn(50, 1).double() - 9, torch.randn(50, 1).double() + 9])
        >>> sorted(round(m) for m in fit_mixture(x, components=2).means.flatten().sign().tolist())
        [-1, 1]
    """
    learner = Learner(
        components,
        covariance_type=covariance,
        reg_covar=ridge,
        max_iter=_ITERATIONS,
        random_state=draw_seed(generator),
    )
    points = some_rows(x, _MAX_POINTS).cpu().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner.fit(points)
    weights, means, covariances = (
        torch.as_tensor(value).to(x)
        for value in (learner.weights_, learner.means_, _full(learner.covariances_, learner))
    )
    kept = weights >= min(_LEAST_POINTS / len(points), weights.max().item())
    return GaussianMixture(weights[kept] / weights[kept].sum(), means[kept], covariances[kept])


def _full(covariances: np.ndarray, learner: Learner) -> np.ndarray:
    """Covariances of any type as ``(K, D, D)``."""
    if learner.covariance_type == "tied":
        return np.broadcast_to(covariances, (learner.n_components, *covariances.shape)).copy()
    if learner.covariance_type == "diag":
        return covariances[:, :, None] * np.eye(covariances.shape[1])
    return covariances

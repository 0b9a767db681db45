"""What one would use instead: a Gaussian, a kernel estimate, a mixture."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from scorematching.datasets import Standardise
from scorematching.distributions import Distribution, GaussianMixture
from scorematching.estimators.density.bases.gaussian import fit_gaussian
from scorematching.estimators.density.bases.kde import fit_kde
from scorematching.estimators.density.bases.transformed import Transformed

NAMES = ("Gaussian", "KDE", "mixture")
"""Of the baselines, the Gaussian first."""

_COMPONENTS, _MAX_ROWS = (1, 2, 3, 5, 8), 5000


def fit_baselines(
    s: Tensor, scaling: Standardise, seed: int, first: Tensor | None = None
) -> dict[str, Transformed]:
    """Gaussian, kernel estimate and mixture as distributions of the modelled columns.

    The bandwidth is that of largest leave-one-out likelihood, the number of components, with full
    covariances, that of least BIC. A mixture that cannot be fitted is left out.

    Args:
        s: standardised training rows ``(N, K)``; kernel estimate and mixture use 5,000 at most.
        scaling: how they were standardised.
        seed: of starts and of the choice of rows.
        first: which rows repeat no row before them, ``(N,)``; the kernel estimate has no others,
            since copies would make its bandwidth too small. None takes all.

    Example:
        >>> x = torch.randn(50, 2, dtype=torch.float64)
        >>> scaling = Standardise.fit(x)
        >>> sorted(fit_baselines(scaling(x), scaling, seed=0))
        ['Gaussian', 'KDE', 'mixture']
    """
    generator = torch.Generator().manual_seed(seed)
    kernels = fit_kde(s if first is None else s[first], generator)
    found: dict[str, Distribution] = {"Gaussian": fit_gaussian(s), "KDE": kernels}
    rows = s[torch.randperm(len(s), generator=generator)[:_MAX_ROWS]]
    mixture = _mixture(rows, seed)
    if mixture is not None:
        found["mixture"] = mixture
    return {name: Transformed(inner, scaling) for name, inner in found.items()}


def _mixture(s: Tensor, seed: int) -> Distribution | None:
    """scikit-learn's mixture of least BIC."""
    from sklearn.mixture import GaussianMixture as Mixture

    data = s.numpy()
    fits = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of starts that do not converge
        for count in _COMPONENTS:
            if 2 * count <= len(data):
                try:
                    fits.append(Mixture(count, random_state=seed).fit(data))
                except (ValueError, np.linalg.LinAlgError):
                    break
    if not fits:
        return None
    best = min(fits, key=lambda fit: fit.bic(data))
    return GaussianMixture(best.weights_, best.means_, best.covariances_)

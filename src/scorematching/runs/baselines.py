"""What one would use instead: a Gaussian, a kernel estimate, a mixture."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.datasets import Standardise
from scorematching.distributions import Distribution, Gaussian, GaussianMixture
from scorematching.estimators.density.bases.gaussian import fit_gaussian
from scorematching.estimators.density.bases.kde import fit_kde
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.selection import (
    Candidate,
    Trial,
    attempt,
    far_outside,
    make_folds,
)

NAMES = ("Gaussian", "KDE", "mixture")
"""Of the baselines, the Gaussian first."""

_COMPONENTS, _MAX_ROWS, _MAX_FOLD_ROWS = (1, 2, 3, 5, 8), 5000, 50_000
_RIDGES, _MIXTURE_FOLDS, _LEAST_GAIN = (1e-6, 1e-3, 0.03, 0.3, 1.0), 3, 0.05
"""What is added to the variances of mixtures, in units of those of the columns; the least that is
not worse by this gain, since smaller differences of few rows are noise."""

_SHRUNK = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.3, 1.0)
"""Parts of the shrinkage of Ledoit and Wolf that are tried for the Gaussian."""


def fit_baselines(
    s: Tensor, scaling: Standardise, seed: int, first: Tensor | None = None
) -> dict[str, Transformed]:
    """Gaussian, kernel estimate and mixture as distributions of the modelled columns.

    The shrinkage of the Gaussian's covariance is that of largest cross-validated likelihood, from
    none, which is maximum likelihood, to that of Ledoit and Wolf. The bandwidth is that of largest
    leave-one-out likelihood. The mixture has full covariances, the number of components of least
    BIC and the ridge that cross-validated likelihood calls for. One that cannot be fitted is left
    out.

    Args:
        s: standardised training rows ``(N, K)``; kernel estimate and mixture use 5,000 at most.
        scaling: how they were standardised.
        seed: of folds, of starts and of the choice of rows.
        first: which rows repeat no row before them, ``(N,)``; shrinkage and ridge are chosen by
            them, and the kernel estimate has no others, since copies would make its bandwidth too
            small. None takes all.

    Example:
        >>> x = torch.randn(50, 2, dtype=torch.float64)
        >>> scaling = Standardise.fit(x)
        >>> sorted(fit_baselines(scaling(x), scaling, seed=0))
        ['Gaussian', 'KDE', 'mixture']
    """
    generator = torch.Generator().manual_seed(seed)
    different = s if first is None else s[first]
    gaussian = _gaussian(s, different, seed)
    found: dict[str, Distribution] = {"Gaussian": gaussian, "KDE": fit_kde(different, generator)}
    rows = s[torch.randperm(len(s), generator=generator)[:_MAX_ROWS]]
    mixture = _mixture(rows, different, seed)
    if mixture is not None:
        found["mixture"] = mixture
    return {name: Transformed(inner, scaling) for name, inner in found.items()}


def _gaussian(s: Tensor, different: Tensor, seed: int) -> Distribution:
    """The normal distribution of all rows, shrunk by as much as held-out rows call for.

    The shrinkage of Ledoit and Wolf has the least error of the covariance, which is far too much
    for the likelihood of columns that almost determine each other.
    """
    generator = torch.Generator().manual_seed(seed)
    folds = make_folds(some_rows(different, _MAX_FOLD_ROWS), generator)
    candidates = [_shrunk(part, own) for own in (True, False) for part in _SHRUNK]
    found = _likelihoods([attempt(each, folds, generator) for each in candidates])
    # At equal likelihoods, as in one column, the first, which is not shrunk.
    best, _ = max(found, key=lambda pair: pair[1])
    return best.fit(s, s[:1], generator)


def _likelihoods(trials: Sequence[Trial | None]) -> list[tuple[Candidate, float]]:
    """Candidates that could be fitted, and their mean log-densities of rows not far outside all."""
    done = [trial for trial in trials if trial is not None]
    if not done:
        return []
    values = torch.stack([trial.log_densities for trial in done])
    means = values[:, ~far_outside(values)].mean(1).tolist()
    return [(trial.candidate, mean) for trial, mean in zip(done, means)]


def _shrunk(part: float, own: bool) -> Candidate:
    """A normal distribution with a part of the shrinkage of Ledoit and Wolf.

    Towards its own variances, or else towards their mean, which is better in tables of few rows;
    that of one outlier makes all columns wide.
    """

    def fit(x: Tensor, held: Tensor, generator: torch.Generator) -> Distribution:
        std = x.std(0, correction=0)
        unit = std.where((std > 0) & own, 1.0)  # without a fold, a column may be constant
        plain, shrunk = fit_gaussian(x / unit, shrink=False), fit_gaussian(x / unit)
        covariance = plain.covariance.lerp(shrunk.covariance, part)
        return Gaussian(unit * plain.mean, unit * covariance * unit[:, None])

    return Candidate(f"gaussian, {part:g} shrunk", fit)


def _mixture(s: Tensor, different: Tensor, seed: int) -> Distribution | None:
    """The mixture of least BIC, with the ridge that held-out rows call for.

    Without a large enough ridge, components with about as many rows as columns are so narrow that
    held-out rows lie millions of nats away.
    """
    generator = torch.Generator().manual_seed(seed)
    folds = make_folds(some_rows(different, _MAX_ROWS), generator, count=_MIXTURE_FOLDS)
    found = _likelihoods([attempt(_ridged(ridge, seed), folds, generator) for ridge in _RIDGES])
    if not found:
        return None
    enough = max(mean for _, mean in found) - _LEAST_GAIN
    chosen = next(candidate for candidate, mean in found if mean >= enough)
    try:
        return chosen.fit(s, s[:1], generator)
    except ValueError:
        return None


def _ridged(ridge: float, seed: int) -> Candidate:
    """scikit-learn's mixture of least BIC, with a multiple of the identity in its covariances."""

    def fit(x: Tensor, held: Tensor, generator: torch.Generator) -> Distribution:
        return _least_bic(x.numpy(), ridge, seed)

    return Candidate(f"mixture, ridge {ridge:g}", fit)


def _least_bic(data: NDArray[np.float64], ridge: float, seed: int) -> Distribution:
    from sklearn.mixture import GaussianMixture as Mixture

    fits = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of starts that do not converge
        for count in _COMPONENTS:
            if 2 * count <= len(data):
                try:
                    fits.append(Mixture(count, reg_covar=ridge, random_state=seed).fit(data))
                except (ValueError, np.linalg.LinAlgError):
                    break
    if not fits:
        raise ValueError("no mixture can be fitted")
    best = min(fits, key=lambda fit: fit.bic(data))
    return GaussianMixture(best.weights_, best.means_, best.covariances_)

"""What a user would pick instead: a kernel estimate, a mixture by BIC, and two flows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Mixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity as Kernels
from torch import Tensor

from scorematching.distributions import Distribution, GaussianMixture
from scorematching.estimators.density.bases.flow import Flow, FlowModule, has_flows
from scorematching.estimators.density.bases.kde import KernelDensity
from scorematching.estimators.density.bases.seeds import seeded

BANDWIDTHS = np.logspace(-1.5, 0.5, 25)
COMPONENTS = range(1, 11)
LR, BATCH_SIZE, EPOCHS, PATIENCE, VALID = 2e-3, 128, 300, 20, 0.15

Fit = Callable[[Tensor, int], Distribution]
"""A distribution fitted to standardised points, for a seed."""


def kde(x: Tensor, seed: int) -> Distribution:
    """scikit-learn's kernel density estimate, its bandwidth by 5-fold cross-validation."""
    folds = min(5, len(x))
    search = GridSearchCV(Kernels(), {"bandwidth": BANDWIDTHS}, cv=folds).fit(x.numpy())
    return KernelDensity(x, float(search.best_params_["bandwidth"]))


def mixture(x: Tensor, seed: int) -> Distribution:
    """scikit-learn's Gaussian mixture with full covariances, 1 to 10 components by BIC."""
    data = x.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        counts = [k for k in COMPONENTS if k < len(data)]
        fits = [Mixture(k, random_state=seed).fit(data) for k in counts]
    best = min(fits, key=lambda fit: fit.bic(data))
    return GaussianMixture(best.weights_, best.means_, best.covariances_)


def flow(kind: str) -> Fit:
    """Zuko's NSF or MAF with its defaults, by maximum likelihood with early stopping."""

    def fit(x: Tensor, seed: int) -> Distribution:
        import zuko.flows

        generator = torch.Generator().manual_seed(seed)
        with seeded(generator):
            made = {"nsf": zuko.flows.NSF, "maf": zuko.flows.MAF}[kind](x.shape[1])
            module = FlowModule(made.transform)
        order = torch.randperm(len(x), generator=generator)
        count = max(1, round(VALID * len(x)))
        points = x.float()[order]
        _maximise_likelihood(module, points[count:], points[:count], generator)
        return Flow(module.double(), x.shape[1])

    return fit


def _maximise_likelihood(
    module: FlowModule, x: Tensor, valid: Tensor, generator: torch.Generator
) -> None:
    """Adam, until the held-out likelihood has not risen for some epochs; the best is kept."""
    optimiser = torch.optim.Adam(module.parameters(), lr=LR)
    best, kept, waited = -torch.inf, module.state_dict(), 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
            optimiser.zero_grad()
            (-module(x[rows]).mean()).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 5.0)
            optimiser.step()
        with torch.no_grad():
            likelihood = module(valid).mean().item()
        waited += 1
        if likelihood > best:
            best, waited = likelihood, 0
            kept = {name: value.clone() for name, value in module.state_dict().items()}
        if waited >= PATIENCE:
            break
    module.load_state_dict(kept)


def peers() -> dict[str, Fit]:
    """All of them by name; flows where zuko is installed."""
    found: dict[str, Any] = {"KDE": kde, "mixture": mixture}
    if has_flows():
        found |= {"NSF": flow("nsf"), "MAF": flow("maf")}
    return found

"""Tables for the tests of DensityEstimator."""

from __future__ import annotations

import numpy as np
import torch

from scorematching.distributions import Gaussian
from scorematching.estimators.density import DensityEstimator

F64 = torch.float64
QUICK = {"max_steps": 5, "hidden": (8,), "num_inducing": 4, "num_importance": 2000}


def quick(model="none", **settings):
    """An estimator that fits in a fraction of a second."""
    base = {} if model == "nice" else {"base": "gaussian"}
    return DensityEstimator(model, random_state=0, **{**QUICK, **base, **settings})


def table(n=60, d=2, seed=0):
    """Correlated columns of very different scale."""
    x = np.random.default_rng(seed).normal(size=(n, d)) @ (np.eye(d) + 0.5)
    return x * np.logspace(-2, 2, d) + np.arange(d)


def normal(d, scale=1.0):
    return Gaussian(torch.zeros(d, dtype=F64), scale**2 * torch.eye(d, dtype=F64))

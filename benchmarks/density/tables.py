"""The tables: nine that decisions were made on, and ten that no decision has seen.

All are part of scikit-learn or of this package, or are generated. Rounded columns get uniform
noise over their rounding first, the same for every method, since likelihoods of rounded values
measure how narrow the peaks are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets, decomposition

from scorematching.datasets import Dequantise, load
from scorematching.distributions import Funnel

Array = NDArray[np.float64]
Draw = Callable[[int], Array]
"""A table for a seed, ``(N, D)``."""

TEST_SHARE = 0.3


def split(draw: Draw, seed: int) -> tuple[Array, Array]:
    """Training and test rows, standardised by the training rows."""
    x = draw(seed)
    order = np.random.default_rng(seed).permutation(len(x))
    count = round(TEST_SHARE * len(x))
    test, train = x[order[:count]], x[order[count:]]
    mean, std = train.mean(0), train.std(0)
    return (train - mean) / std, (test - mean) / std


def filled(x: Any, seed: int) -> Array:
    """A table with noise over the rounding of its columns; constant columns are dropped."""
    table = torch.as_tensor(np.asarray(x, dtype=np.float64))
    table = table[:, table.std(0) > 0]
    noisy = Dequantise.fit(table)(table, torch.Generator().manual_seed(seed))
    return np.asarray(noisy.numpy())


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(1000 + seed)


def _digits(seed: int) -> Array:
    """Every pixel is an integer from 0 to 16, also those that are always zero."""
    x = datasets.load_digits().data
    return np.asarray(x + _rng(seed).uniform(-0.5, 0.5, x.shape))


def _red_wine(seed: int) -> Array:
    return filled(load("redwine").x.unique(dim=0), seed)


def _blobs(seed: int) -> Array:
    return np.asarray(datasets.make_blobs(3000, 16, centers=5, cluster_std=4.0, random_state=7)[0])


NINE: dict[str, Draw] = {
    "iris": lambda seed: filled(datasets.load_iris().data, seed),
    "two moons": lambda seed: datasets.make_moons(2000, noise=0.1, random_state=seed)[0],
    "Student-t 2.5": lambda seed: _rng(seed).standard_t(2.5, size=(2000, 6)),
    "diabetes": lambda seed: filled(datasets.load_diabetes(scaled=False).data, seed),
    "red wine": _red_wine,
    "wine": lambda seed: filled(datasets.load_wine().data, seed),
    "five blobs": _blobs,
    "breast cancer": lambda seed: datasets.load_breast_cancer().data,
    "digits": _digits,
}


def _benign(seed: int) -> Array:
    x, benign = datasets.load_breast_cancer(return_X_y=True)
    return np.asarray(x[benign == 1])


def _components(seed: int) -> Array:
    pca = decomposition.PCA(12, random_state=0)
    return np.asarray(pca.fit_transform(datasets.load_digits().data))


def _friedman(seed: int) -> Array:
    x, y = datasets.make_friedman1(1500, n_features=6, noise=1.0, random_state=seed)
    return np.c_[x, y]


def _lognormal(seed: int) -> Array:
    rng = _rng(seed)
    mixing = np.random.default_rng(5).normal(size=(8, 8)) / 8**0.5
    return np.exp(rng.normal(size=(2000, 8)) @ mixing)


def _clusters(seed: int) -> Array:
    options = {"n_informative": 8, "n_redundant": 0, "n_clusters_per_class": 3}
    return np.asarray(datasets.make_classification(2000, 12, random_state=seed, **options)[0])


def _funnel(seed: int) -> Array:
    law = Funnel(dim=5, scale=2.0).to(dtype=torch.float64)
    return np.asarray(law.sample(2000, torch.Generator().manual_seed(1000 + seed)).numpy())


def _autoregression(seed: int) -> Array:
    rng, x = _rng(seed), np.zeros((1500, 20))
    x[:, 0] = rng.normal(size=1500)
    for j in range(1, 20):
        x[:, j] = np.sin(2 * x[:, j - 1]) + 0.5 * rng.normal(size=1500)
    return x


TEN: dict[str, Draw] = {
    "linnerud": lambda seed: filled(datasets.load_linnerud().data, seed),
    "benign tumours": _benign,
    "digits, 12 components": _components,
    "circles": lambda seed: datasets.make_circles(2000, noise=0.08, factor=0.5, random_state=seed)[
        0
    ],
    "swiss roll": lambda seed: datasets.make_swiss_roll(2000, noise=0.5, random_state=seed)[0],
    "Friedman": _friedman,
    "lognormal": _lognormal,
    "classes": _clusters,
    "funnel": _funnel,
    "autoregression": _autoregression,
}

TABLES: dict[str, Draw] = {**NINE, **TEN}

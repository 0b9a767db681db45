"""Functions that change their points in place, as numpy users write them, change nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.distributions import Gaussian
from scorematching.evaluation import (
    Fitted,
    Fixed,
    LogZEstimate,
    NormalPixels,
    ais_log_z,
    control_variate,
    decoder_bracket,
    decoder_log_likelihood,
    feature_moments,
    fisher_divergence,
    importance_bracket,
    importance_log_likelihood,
    importance_log_z,
    kernel_stein_discrepancy,
    ksd_test,
    log_likelihood,
    stein_thin,
)

WIDE = Gaussian(torch.zeros(2).double(), 4 * torch.eye(2).double())


class Estimated:
    """An estimator by scikit-learn's conventions, with a score of numpy arrays."""

    def __init__(self, score: Callable[[Any], Any]) -> None:
        self.grad_log_density = score


def score(x: Any) -> Any:
    """That of N(3, I)."""
    return 3.0 - x


def score_in_place(x: Any) -> Any:
    """The same, at the cost of its points."""
    x -= 3.0
    return -x


def log_density(x: Tensor) -> Tensor:
    """That of N(3, I), up to a constant."""
    return -0.5 * (x - 3.0).square().sum(-1)


def log_density_in_place(x: Tensor) -> Tensor:
    """The same, at the cost of its points."""
    x -= 3.0
    return -0.5 * x.square().sum(-1)


def seeded(seed: int = 1) -> torch.Generator:
    """A new generator."""
    return torch.Generator().manual_seed(seed)


def family(f: Callable[[Any], Any]) -> Fitted:
    """Normal distributions, fitted by a function that calls f first."""

    def fit(x: Tensor) -> Gaussian:
        f(x)
        return Gaussian(torch.full((2,), 3.0).double(), torch.eye(2).double())

    return Fitted(fit, lambda model, n, generator: model.sample(n, generator))


def decode(f: Callable[[Any], Any], z: Tensor) -> Tensor:
    """A decoder of latents with one coordinate."""
    return torch.cat([f(z.clone()), 2.0 + f(z)], dim=1)


OF_SCORES: dict[str, Callable[[Any, Tensor], Any]] = {
    "kernel_stein_discrepancy": kernel_stein_discrepancy,
    "of a field": lambda f, x: kernel_stein_discrepancy(sm.VectorField(f), x),
    "of an estimator": lambda f, x: kernel_stein_discrepancy(Estimated(f), x),
    "in little memory": lambda f, x: kernel_stein_discrepancy(f, x, max_memory=10**6),
    "ksd_test": lambda f, x: ksd_test(Fixed(f), x, generator=seeded()).null,
    "Fitted": lambda f, x: ksd_test(family(f), x, num_bootstrap=3, generator=seeded()).null,
    "stein_thin": lambda f, x: stein_thin(x, f, 5),
    "control_variate": lambda f, x: control_variate(x[:, 0], x, f).controlled.mean,
    "fisher_divergence": lambda f, x: fisher_divergence(sm.VectorField(f), torch.neg, x).mean,
    "entropy_surrogate": lambda f, x: sm.entropy_surrogate(x, f),
    "feature_moments": lambda f, x: feature_moments(f, x).mean,
    "decoder_log_likelihood": lambda f, x: decoder_log_likelihood(
        lambda z: decode(f, z), x[:3], 1, NormalPixels(0.0), num_steps=5, generator=seeded()
    ).log_likelihood,
    "decoder_bracket": lambda f, x: decoder_bracket(
        lambda z: decode(f, z), 3, 1, x, NormalPixels(0.0), num_steps=5, generator=seeded()
    ).upper,
    "importance_log_likelihood": lambda f, x: importance_log_likelihood(
        lambda z: decode(f, z), x[:3], lambda x: f(x)[None, :, :1], NormalPixels(0.0),
        num_samples=50, generator=seeded(),
    ).log_likelihood,
    "importance_bracket": lambda f, x: importance_bracket(
        lambda z: decode(f, z), 3, 1, x, lambda x: f(x)[None, :, :1], NormalPixels(0.0),
        num_samples=50, generator=seeded(),
    ).upper,
}  # fmt: skip

OF_DENSITIES: dict[str, Callable[[Any, Tensor], Any]] = {
    "kernel_stein_discrepancy": kernel_stein_discrepancy,
    "log_density": lambda f, x: sm.LogDensityField(f).log_density(x),
    "log_likelihood": lambda f, x: log_likelihood(f, x, LogZEstimate(0.0, 0.0, 1e4, 10**4)).mean,
    "importance_log_z": lambda f, x: importance_log_z(f, WIDE, 100, generator=seeded()).log_z,
    "ais_log_z": lambda f, x: ais_log_z(f, WIDE, 10, 5, generator=seeded()).log_z,
    "start": lambda f, x: sm.samplers.start(sm.samplers.target_of(f), x).score,
}


def compare(use: Callable[[Any, Tensor], Any], plain: Any, in_place: Any) -> None:
    """Both functions give the same result, and the points stay as they are."""
    x = 3.0 + torch.randn(20, 2, generator=seeded(0), dtype=torch.float64)
    given = x.clone()
    wanted, found = use(plain, x), use(in_place, given)
    assert torch.equal(given, x)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-9)


@pytest.mark.parametrize("name", OF_SCORES)
def test_scores_in_place(name: str) -> None:
    compare(OF_SCORES[name], score, score_in_place)


@pytest.mark.parametrize("name", OF_DENSITIES)
def test_log_densities_in_place(name: str) -> None:
    compare(OF_DENSITIES[name], log_density, log_density_in_place)

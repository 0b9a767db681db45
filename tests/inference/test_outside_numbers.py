"""Numbers that other programs print, and a published table."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from scorematching.domains import PositiveOrthant, Simplex
from scorematching.inference import FitResult, fit
from scorematching.inference.models import PPI, TruncatedGaussian
from tests.statistics import assert_mean

# Asymptotic variances that genscore prints for the normal distribution truncated to x > 0, at mean
# 0 and variance 1 with h = min(log(1 + x), 2), for one parameter while the other is known.

MEAN, VARIANCE = 2.795459, 2.379507
DOMAIN = PositiveOrthant("min(log(1+x), 2)")


def half_normal(which: str) -> TruncatedGaussian:
    model = TruncatedGaussian(1, centred=which == "variance", domain=DOMAIN)
    model.precision.requires_grad_(which == "variance")
    return model


@pytest.mark.parametrize(("which", "expected"), [("mean", MEAN), ("variance", VARIANCE)])
def test_asymptotic_variance_by_quadrature(which: str, expected: float) -> None:
    """H and K under the truth: a fit to quadrature nodes, with weights."""
    kink = math.e**2 - 1
    nodes, weights = np.polynomial.legendre.leggauss(200)
    ends = [(0, kink), (kink, 40.0)]
    x = np.concatenate([(b - a) / 2 * nodes + (b + a) / 2 for a, b in ends])
    w = np.concatenate([(b - a) / 2 * weights for a, b in ends]) * np.exp(-0.5 * x**2)
    result = fit(half_normal(which), x[:, None], weights=w)
    assert result.params[0] == pytest.approx(float(which == "variance"), abs=1e-10)
    psi = result._setting.optimum.derivatives.gradients.numpy()[:, 0]
    variance = (w / w.sum()) @ psi**2 / result.H[0, 0] ** 2  # of the precision, or the mean
    assert variance == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("which", "expected"), [("mean", MEAN), ("variance", VARIANCE)])
def test_asymptotic_variance_by_simulation(which: str, expected: float) -> None:
    """The spread of estimates over data sets, and the errors that one fit reports."""
    n, repeats = 2000, 2000
    g = torch.Generator().manual_seed(0)
    x = torch.randn(repeats, n, generator=g, dtype=torch.float64).abs()
    h, slope = x.log1p().clamp_max(2), torch.where(x < math.e**2 - 1, 1 / (1 + x), 0)
    if which == "mean":  # the zero of mean(h' - h (x - mu))
        estimates = (h * x - slope).mean(1) / h.mean(1)
    else:
        estimates = (h * x.square()).mean(1) / (h + slope * x).mean(1)
    truth = float(which == "variance")
    assert_mean(n * (estimates - truth).square(), expected, detect=0.3 * expected)
    result = fit(half_normal(which), x[0, :, None])
    if which == "variance":
        result = result.function(lambda theta: 1 / theta["precision"])
    assert result.params[0] == pytest.approx(float(estimates[0]), rel=1e-9, abs=1e-9)
    big = fit(half_normal(which), x[:100].reshape(-1, 1))
    assert 100 * n * big.cov_params()[0, 0] == pytest.approx(expected, rel=0.03)


# Table 3 of Scealy and Wood (2023): 92 people, five groups of bacteria.

ESTIMATES = {
    "A[0,0]": -127480.09,
    "A[1,1]": -8191.1725,
    "A[2,2]": -46.638659,
    "A[3,3]": -39.208915,
    "A[0,1]": 14068.391,
    "A[0,2]": 1782.2618,
    "A[0,3]": -240.07657,
    "A[1,2]": -8.0026799,
    "A[1,3]": 374.69398,
    "A[2,3]": 9.0276334,
}
RATIOS = "-5.38797 -2.16549 -2.22572 -2.06068 1.49097 2.41267 -0.39993 -0.05050 1.77637 0.75780"


def microbiome() -> Tensor:
    folders = [os.environ.get("SCOREMATCHING_DATA"), Path(__file__).parents[3] / "shared" / "data"]
    for folder in filter(None, folders):
        file = Path(folder) / "microbiome" / "proportions.csv"
        if file.exists():
            return torch.as_tensor(np.loadtxt(file, delimiter=",", skiprows=1))
    pytest.skip("no microbiome/proportions.csv in the folder of SCOREMATCHING_DATA")


def published(x: Tensor) -> FitResult:
    model = PPI(5, beta=[-0.8, -0.85, 0.0, -0.2, 0.0], domain=Simplex("minsq", cap=0.01))
    return fit(model, Simplex.interior(x))


@pytest.mark.data
def test_published_table_of_proportions() -> None:
    result = published(microbiome())
    for (name, estimate), ratio in zip(ESTIMATES.items(), RATIOS.split(), strict=True):
        assert result.params[name] == pytest.approx(estimate, rel=1e-6)
        assert result.tvalues[name] == pytest.approx(float(ratio), abs=1e-5)
    assert "closed form" in result.method


@pytest.mark.data
def test_zeros_have_to_be_moved() -> None:
    x = microbiome()
    model = PPI(5, beta=[-0.8, -0.85, 0.0, -0.2, 0.0])
    with pytest.raises(ValueError, match=r"no proportion of zero, got \d+ of 92 rows"):
        fit(model, x)

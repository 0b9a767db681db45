"""The baselines are as good as what a user would fit instead."""

from __future__ import annotations

import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from scorematching.datasets import Standardise
from scorematching.estimators.density.bases.gaussian import fit_gaussian
from scorematching.estimators.density.scaling import robust_standardise
from scorematching.runs.baselines import fit_baselines


def collinear(noise: float, generator: torch.Generator) -> Tensor:
    """Five columns, two of them sums of others but for noise."""
    x = torch.randn(300, 3, dtype=torch.float64, generator=generator)
    errors = noise * torch.randn(300, 2, dtype=torch.float64, generator=generator)
    return torch.cat([x, torch.stack([x.sum(1), x[:, 0]], 1) + errors], 1)


def factors(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Three factors behind many columns, in about as many rows."""
    weights = torch.randn(3, columns, dtype=torch.float64, generator=generator)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=generator) @ weights
    return x + 0.01 * torch.randn(rows, columns, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    "table", ["collinear, 0.1", "collinear, 0.001", "factors", "few rows", "independent"]
)
def test_gaussian_is_no_weaker_than_maximum_likelihood_or_a_shrunk_one(
    table: str, generator: torch.Generator
) -> None:
    """Shrunk by the formula of Ledoit and Wolf alone, it lost up to 44 nats per row."""
    x = {
        "collinear, 0.1": lambda: collinear(0.1, generator),
        "collinear, 0.001": lambda: collinear(0.001, generator),
        "factors": lambda: factors(200, 20, generator),
        "few rows": lambda: factors(60, 40, generator),
        "independent": lambda: torch.randn(60, 40, dtype=torch.float64, generator=generator),
    }[table]()
    scaling = Standardise.fit(x)
    s, held = scaling(x)[::2], scaling(x)[1::2]
    plain, shrunk = fit_gaussian(s, shrink=False)(held), fit_gaussian(s)(held)
    found = fit_baselines(s, scaling, seed=0)["Gaussian"].inner(held)
    assert found.mean() > max(plain.mean(), shrunk.mean()) - 0.05


@pytest.mark.parametrize(("rows", "columns"), [(40, 3), (120, 40), (150, 100)])
def test_mixture_of_few_rows_is_no_narrower_than_held_out_rows(
    rows: int, columns: int, generator: torch.Generator
) -> None:
    """Held-out rows were up to 70 million nats away from components of few rows."""
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    scaling = Standardise.fit(x)
    s, held = scaling(x)[::2], scaling(x)[1::2]
    found = {name: each.inner(held).mean() for name, each in fit_baselines(s, scaling, 0).items()}
    assert found["mixture"] > found["Gaussian"] - columns / 2


def test_one_wrong_value_does_not_widen_baselines(generator: torch.Generator) -> None:
    """For the sake of that row the Gaussian lost 3.2 nats per row, and the mixture 0.8."""
    x = torch.randn(96, 2, dtype=torch.float64, generator=generator)
    held = torch.randn(200, 2, dtype=torch.float64, generator=generator)
    x[7, 0] = -999
    scaling = robust_standardise(x)
    baselines = fit_baselines(scaling(x), scaling, seed=0)
    found = {name: each(held).mean() for name, each in baselines.items()}
    assert found["Gaussian"] > fit_gaussian(x, shrink=False)(held).mean() - 0.05
    plain = GaussianMixture(2, random_state=0).fit(x.numpy()).score(held.numpy())
    assert found["mixture"] > plain - 0.05

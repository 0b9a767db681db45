"""Weights of domains on the scale of the data, and those that miss the boundary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from scorematching.domains import Box, Domain, PositiveOrthant
from scorematching.inference import fit, models


def exponential(n: int = 1000, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return -torch.rand(n, 1, generator=g, dtype=torch.float64).log()


@pytest.mark.parametrize("unit", [1e4, 1e8])
def test_a_weight_that_is_constant_at_the_points_is_refused(unit: float) -> None:
    """The fit would be that of a normal distribution without bounds, 1.0 instead of -1.0."""
    x = unit * exponential()
    with pytest.raises(ValueError, match=r"h must vary near the boundary, .* column 0"):
        fit(models.TruncatedGaussian(1), x)
    with pytest.raises(ValueError, match="h must vary near the boundary"):
        fit(models.Gaussian(1), x, domain=Domain(lambda x: x[:, 0]))
    upper = Box(upper=0.0)
    with pytest.raises(ValueError, match="h must vary near the boundary"):
        fit(models.Gaussian(1), -x, domain=upper)


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_a_weight_on_the_scale_of_the_data_finds_the_truth(unit: float) -> None:
    """Exponential points have ``linear = -1 / unit``, within four standard errors."""
    orthant = PositiveOrthant(h=f"min(x, {unit:g})")
    result = fit(models.TruncatedGaussian(1, domain=orthant), unit * exponential())
    np.testing.assert_array_less(abs(result.params[0] + 1 / unit), 4 * result.bse[0])
    assert result.bse[0] < 0.2 / unit


def test_points_far_from_the_boundary_need_no_weight() -> None:
    """Nothing is cut off there: the fit is that of the normal distribution on all of space."""
    g = torch.Generator().manual_seed(0)
    x = 1e4 * (8 + torch.randn(500, 1, generator=g, dtype=torch.float64))
    inside = fit(models.TruncatedGaussian(1), x)
    everywhere = fit(models.Gaussian(1), x)
    np.testing.assert_allclose([*inside.bse.values()], [*everywhere.bse.values()], rtol=1e-6)


def test_columns_without_bounds_are_not_judged() -> None:
    x = torch.cat([1e8 * (exponential() - 1), exponential(seed=1)], 1)
    fit(models.Gaussian(2), x, domain=Box(lower=(-float("inf"), 0.0)))
    with pytest.raises(ValueError, match="column 1"):
        fit(models.Gaussian(2), x * torch.tensor([1.0, 1e8]), domain=Box(lower=(-np.inf, 0.0)))


def test_incomplete_rows_are_judged_by_what_was_observed() -> None:
    x = 1e8 * torch.cat([exponential(), exponential(seed=1)], 1)
    x[::10, 0] = torch.nan
    with pytest.raises(ValueError, match=r"h must vary near the boundary, .* column 0"):
        fit(models.TruncatedGaussian(2), x, missing="weighted")

"""Weights of domains on the scale of the data, and those that miss the boundary."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scorematching.domains import Box, Domain, PositiveOrthant, Simplex, Sphere
from scorematching.inference import fit, fit_robust, models


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


@pytest.mark.parametrize("alpha", [[1.0, 2.0, 3.0], [0.8, 0.8, 0.8]])
def test_a_small_cap_on_the_simplex_is_refused(alpha: list[float]) -> None:
    """With the default cap of 0.01, 95% intervals of 200 points held the truth in 4% to 9%."""
    x = np.random.default_rng(0).dirichlet(alpha, 200)
    model = models.PPI(3, interaction=False)
    with pytest.raises(
        ValueError, match=r"h must vary near the boundary.*use cap=0\.\d+,"
    ) as error:
        fit(model, x, domain=Simplex(cap=0.01))
    found = re.search(r"use cap=(0\.\d+)", str(error.value))
    assert found is not None
    for domain in (None, Simplex(cap=float(found[1]))):
        result = fit(model, x, domain=domain)
        off = np.subtract([*result.params.values()], np.subtract(alpha, 1))
        np.testing.assert_array_less(abs(off), 4 * np.asarray(result.bse))
    on_sphere = models.Bingham(3, domain=Sphere("minsq", cap=1e-4))
    with pytest.raises(ValueError, match="h must vary near the boundary"):
        fit(on_sphere, abs(normal_directions(400)))


def normal_directions(n: int) -> np.ndarray:
    z = np.random.default_rng(0).normal(size=(n, 3))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def test_proportions_far_from_the_boundary_need_no_weight() -> None:
    x = np.random.default_rng(0).dirichlet([30.0, 20.0, 10.0], 500)
    model = models.PPI(3, interaction=False)
    small, plain = (fit(model, x, domain=Simplex(cap=cap)) for cap in (0.01, 1.0))
    for result in (small, plain):
        off = np.subtract([*result.params.values()], [29.0, 19.0, 9.0])
        np.testing.assert_array_less(abs(off), 4 * np.asarray(result.bse))


@pytest.mark.parametrize("h", ["min(x, 1)", "min(x^2, 1)"])
def test_rounded_points_at_the_cap_are_between_both_sides(h: str) -> None:
    """A shape of 1 was 0.93 with points rounded to tenths, and 1.12 if 1e-9 was added."""
    x = np.random.default_rng(0).gamma(4.0, size=(3000, 1)).round(1).clip(min=0.1)
    domain = PositiveOrthant(h)
    at, above, below = (fit(gamma, x + s, start=START, domain=domain) for s in (0, 1e-9, -1e-9))
    # Estimates are H^-1 b, with b linear in the slope of the weight.
    np.testing.assert_allclose(above.H, below.H, rtol=1e-6)
    mean = (np.asarray(above.params) + np.asarray(below.params)) / 2
    np.testing.assert_allclose(np.asarray(at.params), mean, rtol=1e-6)
    assert abs(above.params["shape"] - below.params["shape"]) > 0.01


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


# Weights that vanish too slowly where the score is infinite.


def gamma(theta: Any, x: Tensor) -> Tensor:
    return ((theta["shape"] - 1) * x.log() - theta["rate"] * x).sum(-1)


def beta(theta: Any, x: Tensor) -> Tensor:
    return gamma({"shape": theta["a"], "rate": 0.0}, x) + (theta["b"] - 1) * (-x).log1p()[:, 0]


START = {"shape": 2.0, "rate": 1.0}


@pytest.mark.parametrize(("shape", "unit"), [(0.3, 1.0), (1.0, 1.0), (1.0, 1e-6)])
def test_a_weight_that_vanishes_too_slowly_is_refused(shape: float, unit: float) -> None:
    """A shape of 0.3 was estimated as 1.00000001, with a standard error of 1e-8."""
    x = unit * np.random.default_rng(0).gamma(shape, size=(2000, 1))
    with pytest.raises(
        ValueError, match=r"faster at the lower bound of column 0.*grow like d\^-"
    ) as error:
        fit(gamma, x, start=START, domain=PositiveOrthant())
    found = re.search(r'use h="(min\(x\^2, .*\))"', str(error.value))
    assert found is not None
    result = fit(gamma, x, start=START, domain=PositiveOrthant(found[1]))
    np.testing.assert_array_less(abs(result.params["shape"] - shape), 4 * result.bse["shape"])
    assert result.bse["shape"] < 0.1


def test_a_distance_of_ones_own_is_no_other_bound() -> None:
    """It was not examined: the shape of 0.3 was 1.000000003, with an error of 2e-9."""
    x = np.random.default_rng(0).gamma(0.3, size=(2000, 1))
    with pytest.raises(ValueError, match=r"vanish faster at the boundary, .*use h=.min\(x\^2, "):
        fit(gamma, x, start=START, domain=Domain(lambda x: x[:, 0]))
    own, box = (
        fit(gamma, x, start=START, domain=domain)
        for domain in (Domain(lambda x: x[:, 0], "min(x^2, 1)"), PositiveOrthant("min(x^2, 1)"))
    )
    np.testing.assert_allclose(own.cov_params(), box.cov_params(), rtol=1e-8)


def in_disc(power: float) -> np.ndarray:
    """Points of density ``(1 - r^2)^power`` in the unit disc."""
    g = np.random.default_rng(0)
    radius = np.sqrt(1 - g.random(2000) ** (1 / (power + 1)))
    angle = 2 * np.pi * g.random(2000)
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])


def power_of_depth(theta: Any, x: Tensor) -> Tensor:
    return theta["power"] * (-x.square().sum(-1)).log1p()


@pytest.mark.parametrize("power", [-0.6, 0.2, 3.0])
def test_the_edge_of_a_disc(power: float) -> None:
    """The power -0.6 was estimated as 0.0000017, with an error of 1e-6."""
    x, start = in_disc(power), {"power": 0.5}

    def depth(x: Tensor) -> Tensor:
        return 1 - x.norm(dim=-1)

    if power < 1:
        with pytest.raises(ValueError, match="vanish faster at the boundary"):
            fit(power_of_depth, x, start=start, domain=Domain(depth))
    else:
        fit(power_of_depth, x, start=start, domain=Domain(depth))
    result = fit(power_of_depth, x, start=start, domain=Domain(depth, "min(x^2, 1)"))
    np.testing.assert_array_less(abs(result.params["power"] - power), 4 * result.bse["power"])


def test_bounded_scores_need_no_faster_weight() -> None:
    """A triangle, whose distance has corners."""
    x = np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], 1000)[:, :2]

    def depth(x: Tensor) -> Tensor:
        return torch.minimum(x.amin(-1), (1 - x.sum(-1)) / 2**0.5)

    found = fit(lambda theta, x: x @ theta["b"], x, start={"b": [0.0, 0.0]}, domain=Domain(depth))
    np.testing.assert_array_less(np.abs([*found.tvalues.values()]), 4)


def test_the_side_of_a_box_is_named() -> None:
    """Shapes of 5 and 0.4: only the upper bound is reached, one that is not zero."""
    x = np.random.default_rng(0).beta(5.0, 0.4, size=(2000, 1)).clip(max=1 - 1e-12)
    with pytest.raises(ValueError, match="faster at the upper bound of column 0"):
        fit(beta, x, start={"a": 2.0, "b": 2.0}, domain=Box(0.0, 1.0))
    squares = Box(0.0, 1.0, h="min(x^2, 1)")
    result = fit(beta, x, start={"a": 2.0, "b": 2.0}, domain=squares)
    np.testing.assert_array_less(
        abs(np.subtract(result.params, [5.0, 0.4])), 4 * np.asarray(result.bse)
    )


@pytest.mark.parametrize("h", ["ones", lambda z: torch.ones_like(z[:, 0])])
def test_proportions_near_zero_need_a_weight(h: Any) -> None:
    """With parameters of 1.2 to 1.6, 95% intervals of 500 points held the truth in 61% to 80%."""
    model, alpha = models.PPI(3, interaction=False), [1.2, 1.4, 30.0]
    x = np.random.default_rng(0).dirichlet(alpha, 500)
    with pytest.raises(ValueError, match=r"faster at zero of column 0, .*use h=.minsq.$"):
        fit(model, x, domain=Simplex(h))
    fit(models.PPI(3, beta=np.subtract(alpha, 1)), x, domain=Simplex(h))  # its scores are bounded
    result = fit(model, x)
    off = np.subtract([*result.params.values()], np.subtract(alpha, 1))
    np.testing.assert_array_less(abs(off), 4 * np.asarray(result.bse))


def test_proportions_that_are_rarely_near_zero_need_no_weight() -> None:
    x = np.random.default_rng(0).dirichlet([4.0, 5.0, 6.0], 500)
    result = fit(models.PPI(3, interaction=False), x, domain=Simplex("ones"))
    off = np.subtract([*result.params.values()], [3.0, 4.0, 5.0])
    np.testing.assert_array_less(abs(off), 4 * np.asarray(result.bse))


@pytest.mark.parametrize("shape", [4.0, 14.0])
def test_a_weight_may_vanish_slowly_where_points_are_rare(shape: float) -> None:
    x = np.random.default_rng(0).gamma(shape, size=(2000, 1))
    result = fit(gamma, x, start=START, domain=PositiveOrthant())
    np.testing.assert_array_less(abs(result.params["shape"] - shape), 4 * result.bse["shape"])


def test_a_power_of_the_density_does_not_hide_it() -> None:
    x = np.random.default_rng(0).gamma(1.0, size=(1000, 1))
    with pytest.raises(ValueError, match="faster at the lower bound"):
        fit_robust(gamma, x, power=0.05, start=START, domain=PositiveOrthant())


def test_the_advice_keeps_the_power() -> None:
    x = 1e8 * exponential()
    with pytest.raises(ValueError, match=r'use h="min\(x\^2, [0-9.]+e\+15\)"'):
        fit(models.PairwiseInteraction.gamma(1), x)

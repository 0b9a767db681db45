"""Minima do not depend on the units of the points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.inference import FitResult, fit, models


def points(seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    mixed = torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64)
    return torch.randn(200, 2, generator=g, dtype=torch.float64) @ mixed + 1.0


def z(result: FitResult) -> np.ndarray:
    return np.asarray(result.tvalues)


@pytest.mark.parametrize("unit", [1e-20, 1e13, 1e16, 1e40])
@pytest.mark.parametrize("objective", [None, sm.SlicedScoreMatching()], ids=str)
def test_closed_forms_in_large_units(unit: float, objective: sm.Objective | None) -> None:
    """The solution lay below the rounding errors of the start: z-values had wrong signs."""

    def fitted(x: Tensor) -> FitResult:
        return fit(models.Gaussian(2), x, objective, generator=torch.Generator().manual_seed(1))

    found = fitted(unit * points())
    assert "closed form" in found.method
    np.testing.assert_allclose(z(found), z(fitted(points())), rtol=1e-6)


def test_closed_forms_with_columns_in_different_units() -> None:
    x, units = points(), torch.tensor([1e-9, 1e16], dtype=torch.float64)
    expected = z(fit(models.Gaussian(2), x))
    np.testing.assert_allclose(z(fit(models.Gaussian(2), x * units)), expected, rtol=1e-6)


def test_a_loss_that_is_quadratic_near_the_start_only() -> None:
    """In small units the marginals of incomplete rows are linear near precisions of one."""
    x = points()
    x[::7, 0], x[::5, 1] = math.nan, math.nan
    x = x[~x.isnan().all(1)]

    def fitted(x: Tensor) -> FitResult:
        generator = torch.Generator().manual_seed(1)
        return fit(models.Gaussian(2), x, missing="weighted", generator=generator)

    found = fitted(1e-6 * x)
    assert "closed form" not in found.method
    np.testing.assert_allclose(z(found), z(fitted(x)), rtol=1e-5)


def student_t(theta: dict[str, Tensor], x: Tensor) -> Tensor:
    nu, scale = theta["log_nu"].exp(), theta["log_scale"].exp()
    return -0.5 * (nu + 1) * ((x / scale).square() / nu).log1p().sum(-1)


@pytest.mark.parametrize("unit", [1e-6, 1e6, 1e9, 1e12])
def test_newton_steps_go_on_in_large_units(unit: float) -> None:
    """Gradients that are small beside one were taken for zero, and fits stopped early."""
    x = torch.as_tensor(np.random.default_rng(0).standard_t(5.0, (500, 1)))

    def fitted(unit: float) -> FitResult:
        return fit(student_t, x * unit, start={"log_nu": 1.0, "log_scale": math.log(unit)})

    found, expected = fitted(unit), fitted(1.0)
    assert abs(found.params["log_nu"] - expected.params["log_nu"]) < 1e-6
    assert found.bse["log_nu"] == pytest.approx(expected.bse["log_nu"], rel=1e-5)

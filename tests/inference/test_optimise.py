"""Minima do not depend on the units of the points."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.inference import (
    FitResult,
    NotConvergedError,
    SingularInformationError,
    fit,
    models,
)
from scorematching.inference.optimise import _newton
from scorematching.inference.parameters import parametric
from scorematching.inference.problem import Derivatives, Part, Problem


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


class Rising(Problem):
    """A loss that rises with every evaluation, so that no step is accepted."""

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        self.values.append(len(self.values))
        return torch.tensor(float(len(self.values))), torch.ones(1)

    def derivatives(self, theta: Tensor) -> Derivatives:
        return Derivatives(torch.ones(1), torch.ones(2, 1), torch.eye(1))

    values: ClassVar[list[int]] = []


def test_the_steps_that_were_taken_are_counted() -> None:
    """The message said 100 steps wherever a fit ended."""
    part = Part(torch.arange(2), torch.tensor([[1e3], [1e3 + 1]]), sm.ScoreMatching())
    problem = Rising(parametric(student, {"a": 1.0}), (part,), torch.full((2,), 0.5))
    with pytest.raises(NotConvergedError, match=r"after 0 Newton steps \(columns \[0\] of X vary"):
        _newton(problem, torch.ones(1), 0, "")


def student(theta: dict[str, Tensor], x: Tensor) -> Tensor:
    return -theta["a"] * x.square().log1p().sum(-1)


def test_incomplete_columns_far_from_zero_are_named() -> None:
    """Column 0 is never seen with column 1; the advice was to choose another start."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=g, dtype=torch.float64) + torch.tensor([0.0, 1e5])
    x[:50, 0] = math.nan
    x[50:, 1] = math.nan
    with pytest.raises(SingularInformationError, match=r"columns \[1\] of X vary little beside"):
        fit(models.Gaussian(2), x, missing="weighted", generator=g)


@pytest.mark.parametrize("unit", [1e-5, 1e-6, 1e-9])
def test_a_column_in_other_units_ends_no_fit(unit: float) -> None:
    """Steps were compared with all parameters together: at 1e-5 degrees of freedom were wrong in
    the fourth digit, and smaller units had no minimum."""
    g = np.random.default_rng(0)
    x = np.column_stack([1 + g.normal(size=500), 2 * g.standard_t(5, size=500)])

    def both(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        nu, z = theta["log_nu"].exp(), x[:, 1] / theta["log_scale"].exp()
        tails = -0.5 * (nu + 1) * (z.square() / nu).log1p()
        return theta["linear"] * x[:, 0] - 0.5 * theta["precision"] * x[:, 0].square() + tails

    start = {"log_nu": 1.0, "log_scale": 0.0, "linear": 0.0, "precision": 1.0}
    one = fit(both, x, start=start)
    near = start | {"linear": 1 / unit, "precision": 1 / unit**2}  # was taken for a closed form
    for other in (fit(both, x * [unit, 1.0], start=values) for values in (start, near)):
        units = np.array([1, 1, unit, unit**2])
        found, errors = np.asarray(other.params) * units, np.asarray(other.bse) * units
        np.testing.assert_allclose(found, [*one.params.values()], rtol=1e-5)
        np.testing.assert_allclose(errors, [*one.bse.values()], rtol=1e-5)


def heteroscedastic(rows: int, growth: float, seed: int) -> tuple[Any, Any, Any]:
    """A regression whose log-scale grows with the covariate, outcomes, and the design."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, generator=g, dtype=torch.float64)
    noise = torch.randn(rows, generator=g, dtype=torch.float64)
    design = torch.stack([torch.ones_like(z), z], 1)

    def model(theta, y):
        scale = (design @ theta["log_scale"]).exp()
        return -0.5 * ((y[:, 0] - design @ theta["slopes"]) / scale).square()

    return model, (0.5 + z + (growth * z).exp() * noise)[:, None], design


def test_a_loss_without_bound_is_named_and_weights_help() -> None:
    """The advice was to choose another start, of which none has a minimum nearby."""
    model, y, design = heteroscedastic(200, growth=1.0, seed=0)
    start = {"slopes": [0.5, 1.0], "log_scale": [0.0, 1.0]}  # the truth
    with pytest.raises(NotConvergedError) as caught:
        fit(model, y, start=start)
    said = str(caught.value)
    assert "falls without bound, from 5.65 at the start to -" in said and "at row 48;" in said
    assert "give weights, the squares of a first estimate" in said and "another start" not in said
    residual = (y - design @ torch.linalg.lstsq(design, y).solution).abs().log()
    scale = (design @ torch.linalg.lstsq(design, residual).solution).exp()
    found = fit(model, y, start=start, weights=scale[:, 0].square())
    errors = torch.tensor([*found.tvalues.values()]) - torch.tensor(
        [truth / error for truth, error in zip((0.5, 1.0, 0.0, 1.0), found.bse.values())]
    )
    assert errors.abs().max() < 3


def test_derivatives_that_overflow_where_the_model_is_finite_are_named() -> None:
    """The log-density was said to be infinite; second derivatives of torch.logaddexp are NaN."""
    x = 3 * torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = {"narrow": 60.0, "shift": 0.0}

    def mixture(theta, x, add=torch.logaddexp):
        parts = (-0.5 * (theta["narrow"] * x[:, 0]).square(), theta["shift"] - 0.5 * x[:, 0] ** 2)
        return add(*parts)

    with pytest.raises(NotConvergedError, match=r"finite there, .* \(write torch.logsumexp of a"):
        fit(mixture, x, start=start, check=False)

    def infinite(theta, y):
        return theta["a"] * (y[:, 0] - x[3, 0]).square().log()

    with pytest.raises(NotConvergedError, match="where the log-density is infinite"):
        fit(infinite, x, start={"a": 1.0}, check=False)

    def stacked(*parts):
        return torch.logsumexp(torch.stack(parts), 0)

    found = fit(lambda theta, x: mixture(theta, x, stacked), x, start=start, check=False)
    assert all(math.isfinite(error) for error in found.bse.values())

"""Fits from starts that are far from the data."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.inference import FitResult, NotConvergedError, fit, optimise, trust_region
from scorematching.inference.optimise import _newton
from scorematching.inference.parameters import parametric
from scorematching.inference.problem import Part, Problem

START = {"log_nu": 0.0, "log_scale": 0.0, "centre": 0.0, "mean": 0.0, "log_sd": 0.0}


def tails(theta: dict[str, Tensor], x: Tensor) -> Tensor:
    nu, z = theta["log_nu"].exp(), (x - theta["centre"]) / theta["log_scale"].exp()
    return -0.5 * (nu + 1) * (z.square() / nu).log1p()


def both(theta: dict[str, Tensor], x: Tensor) -> Tensor:
    """A normal column beside one of Student's t."""
    z = (x[:, 0] - theta["mean"]) * (-theta["log_sd"]).exp()
    return tails(theta, x[:, 1]) - 0.5 * z.square()


def columns() -> Tensor:
    g = np.random.default_rng(0)
    return torch.as_tensor(np.column_stack([g.normal(size=500), g.standard_t(5, size=500)]))


def problem(start: dict[str, float], x: Tensor) -> Problem:
    part = Part(torch.arange(len(x)), x, sm.ScoreMatching())
    return Problem(parametric(both, start), (part,), torch.full((len(x),), 1 / len(x)).double())


@pytest.mark.parametrize("unit", [10.0, 1e3, 1e5])
def test_a_scale_of_one_for_data_in_other_units(unit: float) -> None:
    """L-BFGS went to log_nu = -281, and the fit ended in an error of torch."""
    x = columns() * torch.tensor([unit, 1.0])
    near = START | {"log_sd": math.log(unit)}
    expected, found = (fit(both, x, start=start) for start in (near, START))
    assert (expected.method[:6], found.method[:5]) == ("L-BFGS", "steps")
    for each in ("params", "bse"):
        a, b = (np.array([*getattr(r, each).values()]) for r in (found, expected))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7 * unit)


def test_without_it_these_fits_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimise, "descend", lambda problem, theta: (theta, 0))
    with pytest.raises((NotConvergedError, sm.errors.SingularInformationError)):
        fit(both, columns() * torch.tensor([1e3, 1.0]), start=START)


def test_it_ends_near_the_minimum_and_leaves_a_saddle() -> None:
    """The loss of a precision a^2 is that of a precision p; a = 0.1 is near its saddle."""
    x = columns()[:, :1]

    def squared(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * theta["a"] ** 2 * x.square().sum(-1)

    part = Part(torch.arange(500), x, sm.ScoreMatching())
    weights = torch.full((500,), 1 / 500, dtype=torch.float64)
    theta, steps = trust_region.descend(
        Problem(parametric(squared, {"a": 0.1}), (part,), weights), torch.tensor([0.1]).double()
    )
    assert abs(float(theta.square() * x.square().mean()) - 1) < 1e-3
    assert 1 < steps < 20


@pytest.mark.parametrize("radius", [1e-3, 0.5, 1e3])
def test_a_step_is_the_best_within_its_radius(radius: float) -> None:
    """Compared with the best of many points on the circle, or with the Newton step inside."""
    at = torch.tensor([1.5, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64)
    found = problem(START, columns()).derivatives(at)
    found = found._replace(
        gradient=found.gradient[:2], hessian=torch.diag(torch.tensor([2.0, 0.5]))
    )
    units = torch.tensor([0.1, 3.0], dtype=torch.float64)
    found = found._replace(hessian=found.hessian.double())
    step, expected = trust_region._step(found, units, radius)

    def fall(s: Tensor) -> Tensor:
        return -(s @ found.gradient) - 0.5 * (s * (s @ found.hessian)).sum(-1)

    angles = torch.linspace(0, 2 * math.pi, 100_001, dtype=torch.float64)
    circle = radius * torch.stack([angles.cos(), angles.sin()], 1) * units
    newton = -torch.linalg.solve(found.hessian, found.gradient)
    inside = bool((newton / units).norm() <= radius)
    best = fall(newton) if inside else fall(circle).max()
    assert (step / units).norm() <= radius * (1 + 1e-9)
    torch.testing.assert_close(expected, fall(step), rtol=1e-9, atol=0)
    torch.testing.assert_close(fall(step), best, rtol=1e-6, atol=0)


def test_derivatives_that_overflow_are_named() -> None:
    theta = torch.tensor([-800.0, 0, 0, 0, 0], dtype=torch.float64)
    with pytest.raises(NotConvergedError, match=r"NaN or infinite at log_nu = -800, .*log-scales"):
        _newton(problem(START, columns()), theta, 0, "")


def test_errors_of_a_function_say_how_it_is_called() -> None:
    def swapped(x: Tensor, theta: dict[str, Tensor]) -> Tensor:
        return both(theta, x)

    with pytest.raises((TypeError, LookupError)) as caught:
        fit(swapped, columns(), start=START)
    assert "f(theta, x), with theta a dict of ['centre', 'log_nu'" in caught.value.__notes__[0]


def test_a_smooth_model_at_a_scale_far_below_the_data() -> None:
    with pytest.raises(sm.SmoothnessError) as caught:
        fit(lambda theta, x: tails(theta, x).sum(-1), columns()[:, 1:] * 1e5, start=START)
    assert "give start in the units of X" in caught.value.__notes__[0]


def test_results_of_functions_are_copied() -> None:
    found: FitResult = fit(both, columns(), start=START)
    again = [copy.deepcopy(found), pickle.loads(pickle.dumps(found))]
    assert all(each.params == found.params for each in again)

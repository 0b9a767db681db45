"""Tests and functions of estimates, compared with the same in other units."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

import scorematching as sm
from scorematching.inference import Estimates, FitResult, HowMany, fit, models


def gaussian_fit() -> FitResult:
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return fit(models.Gaussian(2), x)


@pytest.mark.parametrize("units", [[1e8, 1e-8], [1e-12, 1e12]])
def test_wald_tests_do_not_depend_on_units(units: list[float]) -> None:
    """The statistic of two numbers of very different size is that of the rescaled ones."""
    values = torch.tensor([0.4, -1.1], dtype=torch.float64)
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]], dtype=torch.float64)
    u = torch.tensor(units, dtype=torch.float64)
    found = Estimates(["a", "b"], values * u, covariance * u * u[:, None]).wald_test(["a", "b"])
    expected = float(values @ torch.linalg.inv(covariance) @ values)
    assert math.isclose(found.statistic, expected, rel_tol=1e-9)
    assert math.isclose(found.pvalue, scipy.stats.chi2(2).sf(expected), rel_tol=1e-9)


def test_restrictions_that_follow_from_each_other_are_refused_in_all_units() -> None:
    found = Estimates(["a", "b"], torch.ones(2), torch.diag(torch.tensor([1e-12, 1e12])))
    with pytest.raises(ValueError, match="independent rows"):
        found.wald_test([[1.0, 0.0], [3.0, 0.0]])
    with pytest.raises(ValueError, match="independent rows"):
        found.wald_test([[0.0, 0.0]])


@pytest.mark.parametrize(
    ("R", "q", "message"),
    [
        (["linear[0]"], math.nan, "q must be finite"),
        ([[math.inf, 0, 0, 0, 0]], 0.0, "R must be finite"),
        (["linear[0]"], "a", "q must be numbers"),
        ([[1, 2], [3]], 0.0, "R must be numbers"),
        (0, 0.0, r"R must have one column per parameter, shape \(k, 5\), got \(1, 1\)"),
        (None, 0.0, "R must be finite, got None"),
        ({"linear[0]": 1.0}, 0.0, "R must be names .*, got a dict, whose values would be left out"),
    ],
)
def test_restrictions_must_be_finite_numbers(R: Any, q: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        gaussian_fit().wald_test(R, q)


def test_restrictions_in_a_data_frame_are_its_numbers() -> None:
    """Names of its columns were taken for what was tested: that all parameters are zero."""
    result = gaussian_fit()
    R = pd.DataFrame([[1.0, -2.0, 0.0, 0.0, 0.0]], columns=list(result.names))
    assert result.wald_test(R[R.columns[::-1]]) == result.wald_test(R.to_numpy())
    with pytest.raises(ValueError, match="R must have a column for every parameter"):
        result.wald_test(R.drop(columns="linear[1]"))


def test_restrictions_may_need_gradients() -> None:
    result = gaussian_fit()
    rows = torch.eye(5, requires_grad=True)[:2]
    assert result.wald_test(rows) == result.wald_test(["linear[0]", "linear[1]"])


def test_every_number_has_a_name_of_its_own() -> None:
    """Two numbers of one name would be one number in all tables."""
    with pytest.raises(ValueError, match="names must differ, got 'a' twice or more"):
        Estimates(["a", "a"], torch.ones(2), torch.eye(2))
    with pytest.raises(ValueError, match="names must differ"):
        gaussian_fit().function(lambda theta: theta["linear"], ["b", "b"])
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    start = {"a": [1.0, 1.0], "a[0]": 1.0}
    with pytest.raises(ValueError, match=r"names must differ, got 'a\[0\]'"):
        fit(lambda t, x: -(t["a"] * x**2).sum(-1) + t["a[0]"] * x[:, 0], x, start=start)


def test_a_function_may_return_several_tensors() -> None:
    result = gaussian_fit()
    both = result.function(lambda theta: (theta["linear"][1], theta["linear"][0]))
    np.testing.assert_array_equal([*both.params.values()], [result.params[1], result.params[0]])
    np.testing.assert_allclose([*both.bse.values()], [result.bse[1], result.bse[0]], rtol=1e-12)


@pytest.mark.parametrize(
    "g",
    [
        lambda theta: 3.0,
        lambda theta: theta["linear"].detach(),
        lambda theta: theta["linear"].argmax(),
        lambda theta: theta["linear"].detach().numpy(),
        lambda theta: {"a": theta["linear"]},
    ],
)
def test_a_function_must_be_differentiable(g: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="g must return"):
        gaussian_fit().function(g)


def test_a_function_must_be_finite() -> None:
    """The logarithm of a negative number had a finite standard error."""
    with pytest.raises(ValueError, match=r"g must be finite at the estimates, got \[nan"):
        gaussian_fit().function(lambda theta: (-1 - theta["linear"].square()).log())


def test_tables_of_many_parameters_are_not_cut() -> None:
    """The column of counts was lost, and names ended in dots."""
    names = tuple(f"precision[{i},{i}]" for i in range(200))
    lines = str(HowMany(names, (16,), ((1.25,) * 200,), 0.1, 16)).splitlines()
    assert lines[0].split() == ["M", *names]
    assert lines[1].split() == ["16", *["1.25"] * 200]


def test_results_can_be_pickled() -> None:
    """Processes that fit many data sets return them."""
    result = gaussian_fit()
    loaded = pickle.loads(pickle.dumps(result))
    assert str(loaded.summary()) == str(result.summary())
    points = np.array([[0.3, -0.2]])
    assert loaded.predict(points) == result.predict(points)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (sm.SlicedScoreMatching(), "Directions are independent between points; they cause"),
        (sm.DenoisingScoreMatching(0.3), "Noise is independent between points; it causes"),
    ],
    ids=str,
)
def test_the_source_of_noise_is_named(objective: sm.Objective, said: str) -> None:
    """Noise of denoising score matching was called directions."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=g)
    found = fit(models.Gaussian(2), x, objective, generator=g)
    assert said in str(found.summary())

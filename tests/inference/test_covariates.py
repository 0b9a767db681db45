"""Models with covariates of the rows, which come in by closure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching.domains import PositiveOrthant
from scorematching.inference import fit, fit_robust
from scorematching.inference.fitting import prepare
from scorematching.inference.optimise import _not_converged


def regression(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Covariates ``(n, 2)`` and outcomes ``(n, 1)`` whose spread depends on the first of them."""
    g = np.random.default_rng(0)
    z = np.column_stack([np.ones(n), g.normal(size=n)])
    return z, (z @ [1.0, -2.0] + (0.5 + abs(z[:, 1])) * g.normal(size=n))[:, None]


def normal(z: Tensor):
    """The density of outcomes given covariates, with slopes and a precision."""

    def log_density(theta: dict[str, Tensor], y: Tensor) -> Tensor:
        return -0.5 * theta["precision"] * (y[:, 0] - z @ theta["slopes"]).square()

    return log_density


START = {"slopes": [0.0, 0.0], "precision": 1.0}


@pytest.mark.parametrize("n", [40, 300])
def test_regression_is_least_squares(n: int) -> None:
    """Its errors are those of White (1980). Checks at a part of 300 rows ended in an error."""
    z, y = regression(n)
    found = fit(normal(torch.as_tensor(z)), y, start=START)
    inverse = np.linalg.inv(z.T @ z)
    slopes = inverse @ z.T @ y[:, 0]
    squares = (y[:, 0] - z @ slopes) ** 2
    np.testing.assert_allclose(found.theta["slopes"], slopes, rtol=1e-8)
    assert found.params["precision"] == pytest.approx(1 / squares.mean(), rel=1e-8)
    white = inverse @ (z.T * squares) @ z @ inverse
    np.testing.assert_allclose(found.cov_params()[:2, :2], white, rtol=1e-6)


@pytest.mark.parametrize("n", [90, 300])
def test_regression_on_a_domain(n: int) -> None:
    """Gamma outcomes with a rate for each row; the loss is quadratic, solved here by numpy."""
    g = np.random.default_rng(1)
    z = g.random(n)
    y = g.gamma(3.0, 1 / (0.5 + 2 * z))
    rows = torch.as_tensor(z)

    def gamma(theta: dict[str, Tensor], y: Tensor) -> Tensor:
        rate = theta["rate"] + theta["slope"] * rows
        return (theta["shape"] - 1) * y[:, 0].log() - rate * y[:, 0]

    start = {"shape": 2.0, "rate": 1.0, "slope": 0.0}
    found = fit(gamma, y[:, None], start=start, domain=PositiveOrthant("min(x^2, 1)"))
    h, slope = np.minimum(y**2, 1), np.where(y < 1, 2 * y, 0.0)
    score = np.array([1 / y, -np.ones(n), -z])  # derivatives in shape - 1, rate and slope
    b = (slope * score).mean(1) + np.array([(h * -1 / y**2).mean(), 0, 0])
    wanted = -np.linalg.solve(h * score @ score.T / n, b) + [1, 0, 0]
    np.testing.assert_allclose([*found.params.values()], wanted, rtol=1e-8)


def test_robust_regression() -> None:
    """A tenth of the outcomes lies far away."""
    z, y = regression(300)
    y[::10] += 40.0
    model = normal(torch.as_tensor(z))
    found = fit_robust(model, y, 0.3, start={"slopes": [1.0, -2.0], "precision": 1.0})
    assert abs(found.params["slopes[0]"] - 1) < 0.5
    assert fit(model, y, start=START).params["slopes[0]"] > 4


def test_sliced_regression() -> None:
    """With one outcome a sign is exact score matching."""
    z, y = regression(300)
    model = normal(torch.as_tensor(z))
    sliced = fit(model, y, sm.SlicedScoreMatchingVR(), START, generator=torch.Generator())
    exact = fit(model, y, start=START)
    np.testing.assert_allclose(sliced.cov_params(), exact.cov_params(), rtol=1e-8)


@pytest.mark.parametrize("objective", [None, sm.SlicedScoreMatching()])
def test_regressions_are_compared(objective: sm.Objective | None) -> None:
    """Losses are evaluated in batches of 1024 rows, for which there are no covariates."""
    z, y = (torch.as_tensor(part) for part in regression(1100))
    found = fit(normal(z), y, start=START)
    other = fit(normal(z[:, :1]), y, start={"slopes": [0.0], "precision": 1.0})
    result = sm.evaluation.compare(found, other, y, objective, generator=torch.Generator())
    assert result.better == "a" and result.a.count == 1100
    tau = found.params["precision"]
    squares = (y[:, 0] - z @ found.theta["slopes"]).square()
    losses = 0.5 * tau**2 * squares - tau
    assert result.a.mean == pytest.approx(float(losses.mean()), rel=1e-9)


def test_covariates_in_single_precision_are_named() -> None:
    """A number times a float32 vector is float32, and Newton steps do not end; the advice was to
    choose another start."""
    z, y = regression(300)
    model = normal(torch.as_tensor(z))
    problem = prepare(model, y, None, START, None, None, None, None).problem
    found = problem.derivatives(problem.model.start)
    size = found.gradients.square().mean(0).sqrt()
    rounding = _not_converged(problem, found._replace(gradient=3e-7 * size), 100)
    assert "covariates and other numbers of the model in float64" in str(rounding)
    stopped = _not_converged(problem, found._replace(gradient=3e-3 * size), 100)
    assert "choose a start nearer to the minimum" in str(stopped)


def test_what_evaluates_some_of_the_rows_is_refused() -> None:
    z, y = regression(300)
    model = normal(torch.as_tensor(z))
    with pytest.raises(ValueError, match=r"max_memory must be None for a model .* all 300 rows"):
        fit(model, y, start=START, max_memory=2**30)
    pairs = np.column_stack([y, y])
    pairs[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"no missing values for a model .* drop these rows"):
        fit(model, pairs, start=START, missing="weighted")


@pytest.mark.parametrize("count", [1, 5, 600])
def test_predictions_at_other_rows_are_refused(count: int) -> None:
    """At one row there were 300 values, at others an error of torch about sizes."""
    z, y = regression(300)
    found = fit(normal(torch.as_tensor(z)), y, start=START)
    with pytest.raises(ValueError, match=f"X must have the 300 rows .*, got {count}; write the"):
        found.predict(np.resize(y, (count, 1)))
    with pytest.raises(ValueError, match="X must have the 300 rows of the fit"):
        sm.evaluation.compare(found, lambda x: -x, y[:7])
    by_hand = normal(torch.as_tensor(z[:5]))(found.theta, torch.as_tensor(y[:5]))
    np.testing.assert_allclose(found.predict(y)[:5], by_hand)

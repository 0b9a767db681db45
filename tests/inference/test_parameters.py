"""Arguments of a fit that are refused, with what is wrong and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import scorematching as sm
from scorematching.errors import SingularInformationError
from scorematching.evaluation import compare
from scorematching.inference import fit, fit_robust, models

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_complex_numbers_are_refused() -> None:
    """Their imaginary part was dropped."""
    for x in (X.numpy() + 1j, X + 1j, [[complex(a), 1.0] for a in range(60)]):
        with pytest.raises(TypeError, match="X must be real numbers, got complex ones"):
            fit(models.Gaussian(2), x)


def test_lazy_layers_without_points_are_refused() -> None:
    """The error was torch's own, of a detached tensor."""
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(1), torch.nn.Flatten(0))
    with pytest.raises(ValueError, match="got lazy layers that have not seen any points"):
        fit(lazy, X)


@pytest.mark.parametrize(
    "model",
    [
        models.Gaussian(3),
        models.Gaussian(1, centred=True),
        models.ICA(3),
        models.StudentTExperts(1),
        models.VonMisesFisher(3),
        models.PPI(3),
        models.PairwiseInteraction.gamma(1),
    ],
)
def test_the_number_of_columns(model: Any) -> None:
    wanted = rf"X must have {model.dim} columns? for {type(model).__name__}, got 2"
    for call in (lambda: fit(model, X), lambda: fit_robust(model, X, power=0.1)):
        with pytest.raises(ValueError, match=wanted):
            call()


@pytest.mark.parametrize("points", [X[:2, :1], X[0], X[:, :, None]])
def test_points_of_a_prediction(points: Any) -> None:
    result = fit(models.Gaussian(2), X)
    for which in ("log_density", "score"):
        with pytest.raises(ValueError, match=r"X must have shape \(N, 2\), got "):
            result.predict(points, which)


def test_start_is_a_dict() -> None:
    with pytest.raises(TypeError, match=r"start must be a dict .* got list"):
        fit(models.Gaussian(2), X, start=[1.0, 2.0])


def test_columns_far_from_zero_are_named() -> None:
    with pytest.raises(SingularInformationError, match=r"columns \[1\] of X vary little"):
        fit(models.Gaussian(2), X + torch.tensor([0.0, 1e7]))
    with pytest.raises(SingularInformationError, match="collinear, or constant"):
        fit(models.Gaussian(2), X * torch.tensor([1.0, 0.0]) + torch.tensor([0.0, 1e7]))


def test_a_saddle_is_no_lack_of_data() -> None:
    """The loss is even in a, so a fit that starts at zero cannot leave it."""
    with pytest.raises(SingularInformationError, match=r"falls along \+1 a; choose another start"):
        fit(lambda t, x: -(t["a"] ** 2) * x.square().sum(-1), X, start={"a": 0.0})


def test_tables_of_pandas_and_whole_numbers() -> None:
    x = (100 * X).round()
    expected = fit(models.Gaussian(2), x)
    for same in (x.int(), x.numpy().astype(np.int64), x.float().requires_grad_(), x.mT.clone().mT):
        found = fit(models.Gaussian(2), same)
        np.testing.assert_allclose(found.cov_params(), expected.cov_params(), rtol=1e-12)


def test_masked_entries_are_refused() -> None:
    """They were taken as data."""
    masked = np.ma.masked_greater(X.numpy(), 1.0)
    with pytest.raises(ValueError, match=r"X must have no masked entries, got \d+; drop"):
        fit(models.Gaussian(2), masked)
    with pytest.raises(ValueError, match=r"weights must have no masked entries, got \d+"):
        fit(models.Gaussian(2), X, weights=np.ma.masked_less(np.linspace(0, 1, 60), 0.5))
    fit(models.Gaussian(2), np.ma.array(X.numpy()))


def test_dates_and_durations_are_refused() -> None:
    """They were taken as nanoseconds."""
    days = pd.date_range("2020-01-01", periods=60)
    for x in (pd.DataFrame({"day": days}), np.asarray(days)[:, None], (days - days[0]).values):
        with pytest.raises(TypeError, match="X must be numbers, got dates or durations"):
            fit(models.Gaussian(1), x)


@pytest.mark.parametrize("how", [fit, lambda model, x: fit_robust(model, x, power=0.1)])
def test_predictions_match_columns_by_name(how: Any) -> None:
    """They went by position."""
    table = pd.DataFrame(X.numpy() * [1.0, 5.0], columns=["a", "b"])
    result = how(models.Gaussian(2), table)
    expected = result.predict(table.to_numpy())
    np.testing.assert_array_equal(result.predict(table[["b", "a"]]), expected)
    with pytest.raises(ValueError, match=r"the columns of the fit, \['a', 'b'\], got \['a', 'c'\]"):
        result.predict(table.rename(columns={"b": "c"}), "score")


def test_predictions_match_columns_whose_names_are_numbers() -> None:
    """They went by position: a data frame of an array has the columns 0, 1, 2."""
    table = pd.DataFrame(X.numpy() * [1.0, 5.0])
    result = fit(models.Gaussian(2), table)
    expected = result.predict(table.to_numpy())
    np.testing.assert_array_equal(result.predict(table[[1, 0]]), expected)
    np.testing.assert_array_equal(result.predict(table.set_axis(["a", "b"], axis=1)), expected)
    with pytest.raises(ValueError, match=r"the columns of the fit, \[0, 1\], got \[0, 2\]"):
        result.predict(table.rename(columns={1: 2}), "score")


def test_names_of_parameters_are_text() -> None:
    """Estimates of a parameter called 1 were those at position 1, and had no summary."""
    with pytest.raises(
        TypeError, match=r"start must have text as names of parameters, got \[1, 0\]"
    ):
        fit(lambda theta, x: -(theta[1] * x**2).sum(-1) + theta[0], X, start={1: 1.0, 0: 0.0})


def test_results_of_unnormalised_models_have_no_likelihood() -> None:
    """They were compared as if their constants were zero, with p-values of zero."""
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = sm.distributions.Gaussian(torch.zeros(2).double(), torch.eye(2).double())
    result = fit(models.Gaussian(2), x[:100])
    with pytest.raises(ValueError, match="MaximumLikelihood needs a normalised model"):
        sm.evaluation.compare(result, truth, x[100:], sm.MaximumLikelihood())
    assert sm.evaluation.compare(result, truth, x[100:]).p_value > 0.01


def test_likelihoods_of_unnormalised_models_are_refused() -> None:
    """Only the module knows; it was fitted."""
    for model in (sm.models.MLPDensity(dim=2), models.Gaussian(2)):
        for same in (model, sm.LogDensityField(model)):
            with pytest.raises(ValueError, match=r"needs a normalised model, got .* = False"):
                fit(same, X, sm.MaximumLikelihood())


@pytest.mark.parametrize("which", ["log_density", "score"])
@pytest.mark.parametrize(
    ("model", "outside"),
    [
        (models.TruncatedGaussian(2), [1.0, -0.1]),
        (models.VonMisesFisher(2), [1.0, 1.0]),
        (models.PPI(2, interaction=False), [0.5, 0.6]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_predictions_outside_the_domain_are_refused(model: Any, outside: Any, which: str) -> None:
    """There is no density; the log-density of the truncated normal was finite there."""
    u = torch.rand(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([u, 1 - u], 1)
    x = x.sqrt() if isinstance(model, models.VonMisesFisher) else x
    x = x + 0.1 * x.sin() * u if isinstance(model, models.TruncatedGaussian) else x
    result = fit(model, x)
    assert result.predict(x[:2], which).shape[0] == 2
    points = torch.cat([x[:1], torch.tensor([outside])])
    with pytest.raises(ValueError, match="1 of 2 rows that do not: 1"):
        result.predict(points, which)


def test_columns_in_another_order_are_refused() -> None:
    """Clusters of rows that had been shuffled were those of other rows, without a word."""
    g = np.random.default_rng(0)
    cluster = pd.Series(np.repeat(np.arange(30), 10), name="subject")
    frame = pd.DataFrame(np.repeat(g.normal(size=(30, 2)), 10, 0) + 0.1 * g.normal(size=(300, 2)))
    shuffled = frame.sample(frac=1, random_state=0)
    with pytest.raises(ValueError, match=r"cluster must have its rows in the order of those of X"):
        fit(models.Gaussian(2), shuffled, cluster=cluster)
    with pytest.raises(ValueError, match=r"weights must have .* use weights\.loc\[X\.index\]"):
        fit(models.Gaussian(2), shuffled, weights=cluster + 1)
    plain = fit(models.Gaussian(2), frame, cluster=cluster).cov_params()
    for X, labels in (
        (shuffled, cluster.loc[shuffled.index]),
        (shuffled, cluster.to_numpy()[shuffled.index]),
        (frame.set_index(frame.index + 1000), cluster),  # without a common index by position
    ):
        found = fit(models.Gaussian(2), X, cluster=labels).cov_params()
        np.testing.assert_allclose(found, plain, rtol=1e-8)


def test_rows_with_other_names_are_refused() -> None:
    """Weights of other rows went by position, without a word."""
    g = np.random.default_rng(0)
    frame = pd.DataFrame(g.normal(size=(40, 1)), columns=["a"])
    weights, halves = pd.Series(g.random(40) + 0.5), pd.Series(np.repeat([0, 1, 2, 3], 10))
    model, by_name = models.Gaussian(1), frame.set_index(frame.index + 1000)
    shown = (
        r"must have the index of X, which is \[1000, 1001, 1002, \.\.\.\], got \[500, 501, 502, "
    )
    for other in (weights.set_axis(weights.index + 500), weights.set_axis(frame.index + 1001)):
        with pytest.raises(ValueError, match=r"weights must .*; use weights\.to_numpy\(\) if its"):
            fit(model, by_name, weights=other)
    labels = halves.set_axis(halves.index + 500)
    for call in (
        lambda: fit(model, by_name, cluster=labels),
        lambda: fit_robust(model, by_name, power=0.1, cluster=labels),
        lambda: compare(lambda x: -x, lambda x: -2 * x, by_name, cluster=labels),
    ):
        with pytest.raises(ValueError, match=f"cluster {shown}"):
            call()
    plain = list(fit(model, frame.to_numpy(), weights=weights.to_numpy()).params.values())
    for X, w in (  # where one index merely counts, positions are meant
        (by_name, weights),
        (frame, weights.set_axis(weights.index + 500)),
        (by_name, weights.set_axis(by_name.index)),
        (by_name, weights.to_numpy()),
    ):
        found = list(fit(model, X, weights=w).params.values())
        assert found == pytest.approx(plain, rel=1e-12)


def test_missing_values_of_pandas() -> None:
    """Its nullable types hold NA, which was refused as no number."""
    x = np.random.default_rng(0).normal(size=(80, 2))
    x[::9, 1] = np.nan
    plain = pd.DataFrame(x, columns=["a", "b"])
    results = [
        fit(models.Gaussian(2), X, missing="weighted", generator=torch.Generator())
        for X in (plain, plain.astype("Float64"))
    ]
    assert results[0].params == results[1].params
    with pytest.raises(ValueError, match="X must have no missing values, got 9 of 80 rows"):
        fit(models.Gaussian(2), plain.astype("Float64"))
    dates = plain.assign(b=pd.date_range("2020", periods=80))
    with pytest.raises(TypeError, match="X must be numbers"):
        fit(models.Gaussian(2), dates)


def test_a_sum_over_points_is_refused() -> None:
    """It ended in an IndexError."""

    def total(theta: Any, x: Any) -> Any:
        return -(theta["a"] * x.square()).sum()

    with pytest.raises(ValueError, match="one log-density per point"):
        fit(total, [[1.0], [2.0], [4.0]], start={"a": 1.0})


def test_dropout_in_training_mode_is_named() -> None:
    """The advice was to choose a start nearer to the minimum."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Dropout(), models.Gaussian(2))
    with pytest.raises(ValueError, match=r"dropout in training mode\?\); call model.eval"):
        fit(model, x)
    assert fit(model.eval(), x).method.startswith("closed form")


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_dates_of_pandas_are_named(zone: str | None) -> None:
    """With a time zone they were a column of 1.6e15; beside numbers they had no name."""
    days = pd.Series(pd.date_range("2020", periods=30, tz=zone), name="day")
    table = pd.DataFrame({"size": np.arange(30.0), "day": days, "since": days - days[0]})
    message = "X must be numbers, got dates or durations"
    for X, where in (
        (table, " in 'day', 'since'; divide"),
        (table[["day"]], " in 'day'; divide"),
        (table["day"], "; divide"),
        (pd.Index(days), "; divide"),
    ):
        with pytest.raises(TypeError, match=message + where):
            fit(models.Gaussian(1), X)


def test_columns_of_text_are_named() -> None:
    table = pd.DataFrame({"size": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"], "count": [1, 2, 3]})
    wanted = "X must be numbers .* got DataFrame with something else in 'kind'; leave these columns"
    with pytest.raises(TypeError, match=wanted):
        fit(models.Gaussian(3), table)
    missing = table.assign(size=[1.0, None, 3.0]).convert_dtypes()
    with pytest.raises(TypeError, match=wanted):
        fit(models.Gaussian(3), missing)

"""DensityEstimator refuses what has no density, and names the column, the row or the argument."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes

import scorematching as sm
from tests.estimators.density.tables import quick, table

NUMBERS = np.random.default_rng(0).normal(size=30)

COLUMNS = {
    "categories": pd.Categorical(["u", "v"] * 15),
    "text": ["u", "v"] * 15,
    "objects": pd.Series(["u", 1.0] * 15, dtype=object),
    "dates": pd.date_range("2020-01-01", periods=30),
    "durations": pd.to_timedelta(np.arange(30), "s"),
    "months": pd.period_range("2020-01", periods=30, freq="M"),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_that_are_not_numbers_are_named(kind):
    """In `fit`, and at points to evaluate."""
    frame = pd.DataFrame({"good": NUMBERS, "bad": COLUMNS[kind]})
    advice = "in a unit of your choice" if kind in ("dates", "durations") else "OrdinalEncoder"
    with pytest.raises(ValueError, match=rf"numbers, got .* in 'bad' \(.*\); .*{advice}"):
        quick().fit(frame)
    fitted = quick().fit(pd.DataFrame(table(), columns=["good", "bad"]))
    for ask in (fitted.score_samples, fitted.predict, fitted.score):
        with pytest.raises(ValueError, match=r"in 'bad'"):
            ask(frame)


@pytest.mark.parametrize("kind", ["Int64", "Float64", "boolean", "float32", "object"])
def test_columns_of_numbers_are_taken(kind):
    """Also where pandas stores them in types of its own; missing ones are found there."""
    column = pd.Series(NUMBERS > 0 if kind == "boolean" else np.arange(30)).astype(kind)
    frame = pd.DataFrame({"a": column, "b": NUMBERS})
    estimator = quick(dequantise=kind == "boolean").fit(frame)
    assert np.isfinite(estimator.score_samples(frame)).all()
    if kind != "float32":
        frame.loc[3, "a"] = None
        with pytest.raises(ValueError, match="got NaN in row 3, column 'a'"):
            quick().fit(frame)


@pytest.mark.parametrize("make", [np.array, list, lambda rows: np.array(rows, dtype=object)])
def test_text_in_arrays_is_named(make):
    rows = [["1.5", "2.0"], ["0.5", "unknown"], ["a", "b"], ["1.0", "3.5"]]
    with pytest.raises(ValueError, match="got 'unknown' in row 1, column 1; drop the column"):
        quick().fit(make(rows))


@pytest.mark.parametrize("unit", [1e300, 1e160, 1e-300])
def test_columns_whose_squares_overflow_are_named(unit):
    """They used to be set aside as functions of the others."""
    frame = pd.DataFrame({"a": NUMBERS, "b": unit * NUMBERS[::-1]})
    with pytest.raises(ValueError, match=r"in size, got .* in column 'b'; change its unit"):
        quick().fit(frame)


@pytest.mark.parametrize("unit", [1e60, 1e-60])
def test_other_units_are_taken(unit):
    x = table(50)
    found = quick().fit(unit * x).score_samples(unit * x)
    np.testing.assert_allclose(found + 2 * np.log(unit), quick().fit(x).score_samples(x), rtol=1e-6)


ODD = {
    "masked": (np.ma.masked_equal(np.arange(20.0).reshape(10, 2), 7), r"masked .* at \(3, 1\)"),
    "names": (pd.DataFrame(table(), columns=["a", "a"]), "got 'a' more than once"),
    "records": (np.zeros(9, [("a", float), ("b", float)]), r"got a structured array; .*DataFrame"),
    "dictionary": ({"a": [1.0, 2.0]}, "got a dict; use pandas.DataFrame"),
    "file": ("table.csv", r"got a str; .*pandas.read_csv"),
}


@pytest.mark.parametrize("make", [quick, sm.SteinScoreEstimator])
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_table(make, kind):
    """Masked values were taken for data."""
    x, message = ODD[kind]
    with pytest.raises((TypeError, ValueError), match=message):
        make().fit(x)


@pytest.mark.parametrize("make", [quick, sm.SteinScoreEstimator])
def test_other_layouts_in_memory(make):
    """Reversed rows were refused, in torch's words."""
    x = table() / table().std(0)
    expected = make().fit(x).grad_log_density(x)
    frozen = x.copy()
    frozen.flags.writeable = False
    for same in (
        np.asfortranarray(x),
        x[::-1][::-1],
        frozen,
        x.astype(">f8"),
        np.repeat(x, 2, axis=1)[:, ::2],
        torch.tensor(x, requires_grad=True),
        np.ma.masked_array(x),
    ):
        found = make().fit(same).grad_log_density(same)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_odd_scales_and_shapes():
    """The likelihood is that of the standardised column, less the log of its unit."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    plain = quick().fit(x).score_samples(x).mean()
    tiny = quick().fit(x * [1e-30, 1]).score_samples(x * [1e-30, 1]).mean()
    assert tiny == pytest.approx(plain + 30 * math.log(10))
    seconds = np.c_[1.7e9 + rng.integers(0, 86400, 200), rng.normal(size=200)]
    late = quick().fit(seconds).score_samples(seconds).mean()
    early = quick().fit(seconds - [1.7e9, 0]).score_samples(seconds - [1.7e9, 0]).mean()
    assert late == pytest.approx(early, abs=1e-3)
    wide = rng.normal(size=(7, 30))
    assert np.isfinite(quick().fit(wide).score_samples(wide)).all()
    half = x.astype(np.float16)
    assert quick().fit(half).score_samples(half).mean() == pytest.approx(plain, abs=0.01)


@pytest.mark.parametrize("make", [quick, sm.SteinScoreEstimator, sm.SlicedScoreEstimator])
@pytest.mark.parametrize("device", ["cudaa", "cuda:99", "meta", 3.5])
def test_devices_are_named(make, device):
    with pytest.raises(ValueError, match=f"device must be .* got '?{device}.*; try device="):
        make(device=device).fit(table())


def test_a_single_column_as_a_series_is_refused():
    with pytest.raises(ValueError, match="2-dimensional container"):
        quick().fit(pd.Series(NUMBERS))


@pytest.mark.parametrize(
    "columns",
    [["a", "b"], [0, 1], pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])],
    ids=["names", "numbers", "levels"],
)
def test_samples_keep_the_columns(columns):
    frame = pd.DataFrame(table(), columns=columns)
    assert quick().fit(frame).sample(3, 0).columns.equals(frame.columns)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": (8, 0)}, "every width of hidden must be at least 1, got 0"),
        ({"hidden": 8}, "hidden must be a sequence of widths, got 8"),
        ({"base": 3}, 'base must be "auto", one or several of .* got 3'),
        ({"base": ["gaussian", 3]}, 'base must be "auto", one or several of .* got .*3'),
        ({"max_seconds": -1}, "max_seconds must be a positive number or None, got -1"),
        ({"calibrate": 1}, "calibrate must be"),
        ({"dequantise": "yes"}, "dequantise must be"),
    ],
)
def test_arguments_are_named(settings, message):
    """A bad width must not end as a base without a tilt."""
    with pytest.raises((TypeError, ValueError), match=message):
        quick(**{"model": "mlp", **settings}).fit(table(300))


def test_diabetes():
    """A column of two values among ten; likelihoods of 1e17 came from it."""
    X = load_diabetes().data
    with pytest.warns(UserWarning, match=r"columns .*1.*: discrete or rounded \(.*2"):
        quick().fit(X)

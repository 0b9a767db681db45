"""DensityEstimator on odd tables, points and arguments: a right answer, or an error by name."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import scorematching as sm
from tests.estimators.density.tables import normal, quick, table
from tests.tolerances import ROUTES

pyarrow = pytest.importorskip("pyarrow")

BASES = ["gaussian", "kde", "mixture"]


# Tables that are narrow, but have a density.


def test_narrow_densities_are_scored():
    """They were refused as peaks on single values. Two clusters: the loss is that of one of them.

    One cluster has the standard deviation sd in whitened units, so that the loss is
    ``-0.5 / sd^2`` up to errors of estimation.
    """
    rng = np.random.default_rng(0)
    x = np.r_[rng.normal(0, 1, (400, 1)), rng.normal(1000, 1, (400, 1))]
    found = quick(base="mixture").fit(x)
    assert found.score_samples(x).mean() == pytest.approx(-1.42 - math.log(2), abs=0.05)
    sd = 1 / found.scaling_.std.item()
    assert found.score(x) == pytest.approx(0.5 / sd**2, rel=0.1)


def test_peaks_without_width_are_refused():
    """With advice that fits columns that are not discrete, too."""
    found = quick().fit(table())
    found.density_ = normal(2, 1e-7)
    with pytest.raises(ValueError, match=r"narrower than 1e-6 .* columns 0, 1: .*functions of"):
        found.score(np.repeat(found.scaling_.mean.numpy()[None], 3, 0))


def test_a_row_that_most_rows_repeat():
    """A spike of width 1e-15 stood on it, and likelihoods averaged +59."""
    x = np.random.default_rng(0).normal(size=(30, 2))
    X = np.r_[np.repeat(x[:1], 270, axis=0), x]
    with pytest.warns(UserWarning, match="columns 0, 1: several rows with one value"):
        found = quick(base=[*BASES, "student-t"]).fit(X)
    values = found.score_samples(X)
    assert np.isfinite(values).all() and values.max() < 5
    assert abs(found.score(X)) < 100
    # Copies of every row alike are copies, not one frequent row.
    assert not quick().fit(np.repeat(x, 10, axis=0))._gaps.any


@pytest.mark.parametrize("n", [4, 5, 8])
def test_copies_of_columns_are_found_in_few_rows(n):
    x = table(n)
    X = np.c_[x[:, 0], x[:, 0], x[:, 1], 2 * x[:, 1] + 1][:, : 2 if n == 4 else 4]
    with pytest.warns(UserWarning, match="set aside, since the other columns determine it"):
        found = quick().fit(X)
    kept = [0] if n == 4 else [0, 2]
    assert found.table_.kept == kept
    np.testing.assert_allclose(
        found.score_samples(X), quick().fit(X[:, kept]).score_samples(X[:, kept]), rtol=ROUTES
    )
    sample = found.sample(20, 0)
    np.testing.assert_allclose(sample[:, 1], sample[:, 0])


def test_copies_of_columns_in_wide_tables():
    """Other columns take no part in what restores a copy."""
    x = np.random.default_rng(0).normal(size=(6, 30))
    X = np.c_[x[:, :1], x[:, :1], x[:, 1:]]
    with pytest.warns(UserWarning, match="column 1: set aside"):
        found = quick().fit(X)
    assert list(found.table_.dependent) == [1] and len(found.table_.kept) == 30
    sample = found.sample(20, 0)
    np.testing.assert_allclose(sample[:, 1], sample[:, 0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [(1e-12, 1e12), (1e-90, 1e90)])
def test_scales_that_differ(scale):
    x = table()
    found = quick(base=BASES).fit(x * scale).score_samples(x * scale)
    expected = quick(base=BASES).fit(x).score_samples(x) - np.log(scale).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_signs_of_zeros_are_no_levels():
    zeros = np.where(np.arange(60) % 2, 0.0, -0.0)
    with pytest.warns(UserWarning, match="column 2: constant"):
        found = quick().fit(np.c_[table(), zeros])
    assert found.table_.kept == [0, 1]


# What is no table of numbers.

x = table()
OTHER = {
    "complex array": (x + 1j, "real numbers, got complex128: Complex"),
    "complex tensor": (torch.tensor(x) + 1j, r"real numbers, got torch.complex128"),
    "dates": (np.arange(20).reshape(10, 2).astype("M8[D]"), r"dates or durations \(datetime64"),
    "durations": (np.arange(20).reshape(10, 2).astype("m8[s]"), r"dates or durations \(timedelta"),
    "frame of dates": (
        pd.DataFrame(np.arange(20).reshape(10, 2).astype("M8[ns]"), columns=["a", "b"]),
        r"dates or durations in 'a', 'b' \(datetime64",
    ),
    "dates beside numbers": (
        pd.DataFrame({"a": x[:, 0], "day": pd.date_range("2020", periods=len(x), tz="UTC")}),
        r"dates or durations in 'day' \(datetime64",
    ),
    "durations beside numbers": (
        pd.DataFrame({"a": x[:, 0], "since": pd.to_timedelta(np.arange(len(x)), unit="s")}),
        r"dates or durations in 'since' \(timedelta64",
    ),
    "ragged": ([[1.0, 2.0], [3.0, 4.0], [5.0]], "got 1 values in row 2 and 2 in row 0"),
    "set": ({1.0, 2.0}, "got a set"),
    "generator": ((row for row in x), "got a generator"),
    "arrow": (pyarrow.table({"a": x[:, 0]}), r"Table; use X.to_pandas\(\)"),
}


@pytest.mark.parametrize("make", [quick, sm.SteinScoreEstimator])
@pytest.mark.parametrize("kind", OTHER)
def test_other_types_are_refused_by_name(make, kind):
    """Imaginary parts were dropped, and dates taken for days since 1970."""
    X, message = OTHER[kind]
    with pytest.raises((TypeError, ValueError), match=f"X must .*{message}"):
        make().fit(X)


def test_objects_that_are_no_numbers_have_a_place():
    X = x.astype(object)
    assert quick().fit(X).score_samples(X) == pytest.approx(quick().fit(x).score_samples(x))
    decimals = np.array([[Decimal(str(value)) for value in row] for row in x], dtype=object)
    assert quick().fit(decimals).score(decimals) == pytest.approx(quick().fit(x).score(x))
    for value, shown in ((datetime.date(2020, 1, 1), "datetime.date"), ([1], r"\[1\]"), (1j, "1j")):
        X[4, 1] = value
        with pytest.raises(TypeError, match=rf"got {shown}.* in row 4, column 1 \(.*; drop"):
            quick().fit(X)
    X[4, 1] = None
    with pytest.raises(ValueError, match="got NaN in row 4, column 1"):
        quick().fit(X)


def test_text_of_numbers_and_complex_columns_in_frames():
    frame = pd.DataFrame({"a": [str(value) for value in x[:, 0]], "b": x[:, 1]})
    with pytest.raises(ValueError, match=r"in 'a' .*astype\(float\)"):
        quick().fit(frame)
    quick().fit(frame.astype(float))
    with pytest.raises(ValueError, match=r"in 'b' \(complex128\)"):
        quick().fit(frame.astype({"a": float, "b": complex}))


@pytest.mark.parametrize("kind", ["Float32", "double[pyarrow]", "float[pyarrow]"])
def test_other_columns_of_pandas(kind):
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1]}).astype(kind)
    found = quick().fit(frame).score_samples(frame)
    np.testing.assert_allclose(found, quick().fit(x).score_samples(x), rtol=1e-4, atol=1e-4)
    frame.loc[7, "b"] = None
    with pytest.raises(ValueError, match="got NaN in row 7, column 'b'"):
        quick().fit(frame)


# Points to evaluate at.


@pytest.mark.parametrize("base", ["gaussian", "student-t", "kde", "mixture"])
def test_points_far_away(base):
    """Finite up to 1e50 standard deviations; gradients were NaN without a word from 1e155 on."""
    found = quick(base=base).fit(x)
    for distance in (1e8, 1e40):
        far = found.scaling_.mean.numpy() + distance * found.scaling_.std.numpy()[None]
        assert found.score_samples(far) < found.score_samples(x).min()
        assert np.isfinite(found.grad_log_density(far)).all() and found.predict(far) == [-1]
    for ask in (found.score_samples, found.grad_log_density, found.score, found.predict):
        with pytest.raises(ValueError, match=r"within 1e\+50 .* in row 1, column 1; drop"):
            ask(np.r_[x[:1], [[0.0, 1e200]]])


def test_points_in_other_precision():
    found = quick(base=BASES).fit(x)
    expected = found.score_samples(x)
    for dtype, error in ((np.float32, 1e-4), (np.float16, 0.05)):
        assert np.abs(found.score_samples(x.astype(dtype)) - expected).mean() < error
    whole = np.round(x)
    np.testing.assert_array_equal(
        found.score_samples(whole.astype(int)), found.score_samples(whole)
    )


# Arguments.


@pytest.mark.parametrize("state", [-1, 2**32, 1.5, "abc", [1, 2], torch.Generator()])
def test_random_states_are_named(state):
    found = quick().fit(x)
    for ask in (
        lambda: quick().set_params(random_state=state).fit(x),
        lambda: found.sample(2, state),
    ):
        with pytest.raises(
            ValueError, match=r"random_state must be None, an integer from 0 .*; try"
        ):
            ask()


def test_random_states_that_are_taken():
    found = quick(base=BASES).fit(x)
    for state in (0, np.int64(7), True):
        np.testing.assert_array_equal(found.sample(3, state), found.sample(3, int(state)))
    assert found.sample(2, None).shape == (2, 2)


class Wrong:
    """A base whose log-densities have another shape."""

    def log_prob(self, z: torch.Tensor) -> torch.Tensor:
        return z.sum()

    def sample(self, n: int) -> torch.Tensor:
        return torch.zeros(n, 2)


THREE, UNCHECKED = (
    torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3), validate_args=checks)
    for checks in (True, False)
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": 1e300}, r"noise must be .* at most 1e\+06, got 1e\+300"),
        ({"base": sm.DensityEstimator}, 'base must be "auto", .* got <class'),
        ({"base": THREE}, r"base must be a density of points \(N, D\).*event_shape"),
        ({"base": UNCHECKED}, r"base must be a density of points \(N, D\).*size of tensor"),
        ({"base": Wrong()}, r"base must be a density of points .* of shape \(\) for 12 points"),
    ],
)
def test_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        quick(**settings).fit(x)


def test_arguments_of_questions_are_named():
    found = quick().fit(x)
    with pytest.raises(TypeError, match="normalised must be True or False, got 'no'"):
        found.score_samples(x, normalised="no")
    for ask in (found.score_samples, found.grad_log_density, found.score, quick().fit):
        with pytest.raises(TypeError, match="max_memory must be an integer, got '1GB'"):
            ask(x, max_memory="1GB")


def test_a_base_named_twice_counts_once():
    assert quick(base=["gaussian", "gaussian"]).fit(x).weights_ == {"gaussian": 1.0}


# Fits after fits.


def test_a_fit_that_fails_leaves_the_one_before():
    """Points of the first table were refused afterwards, and samples had the second's columns."""
    frame = pd.DataFrame(x, columns=["a", "b"])
    found = quick().fit(frame)
    before = found.score_samples(frame)
    with pytest.raises(ValueError, match="4 different points"):
        found.fit(pd.DataFrame(table(3, 3), columns=["u", "v", "w"]))
    np.testing.assert_array_equal(found.score_samples(frame), before)
    assert found.sample(2, 0).columns.tolist() == ["a", "b"]
    fresh = quick(noise=-1.0)
    with pytest.raises(ValueError, match="noise"):
        fresh.fit(x)
    assert not hasattr(fresh, "n_features_in_")


def test_fits_to_other_widths_and_clones():
    found = quick().fit(pd.DataFrame(x, columns=["a", "b"]))
    found.fit(table(80, 3))
    assert found.n_features_in_ == 3 and isinstance(found.sample(2, 0), np.ndarray)
    expected = quick().fit(table(80, 3)).score_samples(table(80, 3))
    np.testing.assert_array_equal(found.score_samples(table(80, 3)), expected)
    other = clone(found).set_params(base="student-t")
    assert not hasattr(other, "density_")
    assert other.fit(x).score_samples(x).shape == (60,)
    np.testing.assert_array_equal(found.score_samples(table(80, 3)), expected)


def test_estimators_that_were_pickled_before_gaps_were_kept():
    found = quick().fit(x)
    old = pickle.loads(pickle.dumps(found))
    del old._gaps
    assert old.score(x) == found.score(x)

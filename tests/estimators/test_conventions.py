"""Estimators follow scikit-learn's conventions: its checks, grid search, errors."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from scorematching.estimators import (
    KernelExpFamilyEstimator,
    SlicedScoreEstimator,
    SpectralScoreEstimator,
    SteinScoreEstimator,
    fit_kernel_exp_family,
    fit_spectral,
    fit_stein,
)

SMALL = {
    "stein": SteinScoreEstimator(),
    "spectral": SpectralScoreEstimator(),
    "tikhonov": KernelExpFamilyEstimator(random_state=0),
    "nystrom": KernelExpFamilyEstimator(num_inducing=5, random_state=0),
    "nu": KernelExpFamilyEstimator(method="nu"),
    "sliced": SlicedScoreEstimator(hidden=(8,), max_steps=10, validate_every=5, random_state=0),
}


@pytest.fixture(params=SMALL)
def estimator(request):
    return clone(SMALL[request.param])


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(60, 2))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_passes_the_checks_of_scikit_learn(estimator):
    outcomes = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {o["check_name"]: o["exception"] for o in outcomes if o["status"] == "failed"}
    assert not failed
    assert sum(o["status"] == "passed" for o in outcomes) > 30


@pytest.mark.parametrize("names", [[0, 1], [("u", "a"), ("u", "b")], list(pd.to_datetime([1, 2]))])
def test_columns_without_text_as_names_are_not_taken_in_another_order(estimator, X, names):
    frame = pd.DataFrame(X, columns=names)
    estimator.fit(frame)
    for other in (frame[names[::-1]], frame.set_axis([7, 8], axis=1)):
        with pytest.raises(ValueError, match="X must have the columns of fit"):
            estimator.grad_log_density(other)
        with pytest.raises(ValueError, match="X must have the columns of fit"):
            estimator.score(other)
    same = estimator.grad_log_density(frame)
    np.testing.assert_array_equal(estimator.grad_log_density(X), same)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).grad_log_density(X), same)
    estimator.fit(X).grad_log_density(frame[names[::-1]])  # the fit has no names


def test_shapes_and_types(estimator, X):
    found = estimator.fit(X.tolist()).grad_log_density(X[:7].astype(np.float32))
    assert found.shape == (7, 2)
    assert found.dtype == np.float64
    assert isinstance(estimator.score(X), float)
    assert estimator.n_features_in_ == 2


def test_score_is_minus_the_loss(estimator, X):
    """The exact loss by central differences of the score, in either precision."""
    estimator.fit(X)
    q, h = np.random.default_rng(1).normal(size=(30, 2)), 1e-2
    s = estimator.grad_log_density(q)
    divergence = sum(
        (estimator.grad_log_density(q + h * e) - estimator.grad_log_density(q - h * e))[:, i]
        for i, e in enumerate(np.eye(2))
    ) / (2 * h)
    wanted = -np.mean(divergence + 0.5 * np.sum(s**2, axis=1))
    assert estimator.score(q) == pytest.approx(wanted, rel=1e-2)


def test_fits_again_to_the_same(estimator, X):
    first = estimator.fit(X).grad_log_density(X)
    np.testing.assert_array_equal(clone(estimator).fit(X).grad_log_density(X), first)
    copy = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(copy.grad_log_density(X), first)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fits_where_gradients_are_switched_off(mode, estimator, X):
    want = clone(estimator).fit(X).grad_log_density(X)
    with mode():
        found = estimator.fit(X).grad_log_density(X)
    np.testing.assert_array_equal(found, want)


def test_the_array_stays_the_callers(estimator, X):
    """A fit does not change it, and later changes of it do not change the fit."""
    before = X.copy()
    wanted = estimator.fit(X).grad_log_density(before)
    np.testing.assert_array_equal(X, before)
    X += 100
    np.testing.assert_array_equal(estimator.grad_log_density(before), wanted)


def test_not_fitted(estimator, X):
    for method in (estimator.grad_log_density, estimator.score):
        with pytest.raises(NotFittedError):
            method(X)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[0.0, 1.0]], "minimum of 2 is required"),
        (np.ones((5, 2)), "X must hold points that differ, got 5 copies of one point"),
        ([[0.0, 1.0], [np.nan, 1.0]], "contains NaN"),
        ([[0.0, 1.0], [np.inf, 1.0]], "contains infinity"),
        ([0.0, 1.0], "Expected 2D array"),
    ],
)
def test_bad_points(estimator, X, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(X)


def test_another_dimension(estimator, X):
    estimator.fit(X)
    for method in (estimator.grad_log_density, estimator.score):
        with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 2"):
            method(np.zeros((4, 3)))


@pytest.mark.parametrize(
    "estimator",
    [SteinScoreEstimator(), SpectralScoreEstimator(), KernelExpFamilyEstimator(random_state=0)],
)
def test_grid_search_finds_the_bandwidth(estimator):
    """The held-out loss selects a bandwidth close to the best for the true score."""
    rng = np.random.default_rng(0)
    X, q = rng.normal(size=(150, 2)), rng.normal(size=(1000, 2))
    grid = {"bandwidth": [0.2, 0.7, 2.5, 8.0]}
    search = GridSearchCV(estimator, grid, cv=3).fit(X)
    errors = {
        h: np.mean((clone(estimator).set_params(bandwidth=h).fit(X).grad_log_density(q) + q) ** 2)
        for h in grid["bandwidth"]
    }
    assert search.best_params_["bandwidth"] in (2.5, 8.0)
    assert errors[search.best_params_["bandwidth"]] <= 1.5 * min(errors.values())
    assert errors[0.2] > 3 * min(errors.values())  # the choice matters


@pytest.mark.parametrize(
    ("estimator", "fit"),
    [
        (SteinScoreEstimator(kernel="imq", bandwidth=1.5, eta=0.01), fit_stein),
        (SpectralScoreEstimator(kernel="imq", bandwidth=1.5, mass=0.9), fit_spectral),
        (
            KernelExpFamilyEstimator(kernel="imq", bandwidth=1.5, lam=0.1, base_scale=None),
            fit_kernel_exp_family,
        ),
    ],
)
def test_classes_pass_their_arguments_on(estimator, fit, X):
    names = {"kernel", "bandwidth", "eta", "mass", "lam", "base_scale"}
    arguments = {k: v for k, v in estimator.get_params().items() if k in names}
    wanted = fit(torch.as_tensor(X), **arguments).score(torch.as_tensor(X))
    found = clone(estimator).fit(X)
    np.testing.assert_allclose(found.grad_log_density(X), wanted.numpy(), rtol=1e-9)
    assert found.bandwidth_ == 1.5


def test_log_density_goes_with_its_score(X):
    """The score is the difference quotient of `score_samples`."""
    estimator = KernelExpFamilyEstimator().fit(X)
    h = 1e-4
    slopes = [
        (estimator.score_samples(X + h * e) - estimator.score_samples(X - h * e)) / (2 * h)
        for e in np.eye(2)
    ]
    np.testing.assert_allclose(estimator.grad_log_density(X), np.stack(slopes, 1), atol=1e-6)


def test_only_what_has_a_density_says_so():
    has = {name: hasattr(e, "score_samples") for name, e in SMALL.items()}
    assert {name for name, yes in has.items() if yes} == {"tikhonov", "nystrom", "nu"}


def test_inducing_samples_are_chosen_where_the_system_would_be_large(X):
    many = np.random.default_rng(0).normal(size=(101, 20))
    fitted = KernelExpFamilyEstimator(random_state=0).fit(many).fitted_
    assert len(fitted.points) == 50
    assert len(KernelExpFamilyEstimator().fit(X).fitted_.points) == len(X)
    assert len(KernelExpFamilyEstimator(num_inducing=7).fit(X).fitted_.points) == 7


def test_standardising_is_undone(X):
    """The score is inversely proportional to the units, up to single precision."""
    settings = {"hidden": (8,), "max_steps": 20, "random_state": 0}
    units = np.array([100.0, 0.01])
    plain = SlicedScoreEstimator(**settings).fit(X)
    scaled = SlicedScoreEstimator(**settings).fit(X * units + units)
    found = scaled.grad_log_density(X * units + units) * units
    np.testing.assert_allclose(found, plain.grad_log_density(X), atol=1e-2)


def test_columns_far_from_zero_keep_their_digits(X):
    """Single precision has steps of 128 seconds at the times of today."""
    settings = {"hidden": (8,), "max_steps": 20, "random_state": 0}
    seconds = np.round(1024 * X) / 1024 * 64
    plain = SlicedScoreEstimator(**settings).fit(seconds)
    moved = SlicedScoreEstimator(**settings).fit(seconds + 2.0**31)
    found = moved.grad_log_density(seconds + 2.0**31)
    np.testing.assert_allclose(found, plain.grad_log_density(seconds), rtol=1e-3, atol=1e-6)
    assert moved.score(seconds + 2.0**31) == pytest.approx(plain.score(seconds), rel=1e-3)


@pytest.mark.parametrize("name", ["stein", "spectral", "tikhonov", "nu"])
def test_columns_of_different_scales_are_warned_of(name, X):
    """With one bandwidth for a thousandth and one, the score in the first column is useless."""
    units = np.array([1e-3, 1.0])
    with pytest.warns(UserWarning) as told:
        clone(SMALL[name]).fit(np.hstack([X * units, np.zeros((60, 1))]))
    assert {warning.filename for warning in told} == {__file__} and len(told) == 2
    assert "one bandwidth for all; standardise" in str(told[1].message)
    make_pipeline(StandardScaler(), clone(SMALL[name])).fit(X * units)  # no warning
    # The advice: a log-density log p(z) with z = (x - m) / s has the score (d/dz log p) / s.
    assert "grad_log_density(scaler.transform(X)) / scaler.scale_" in str(told[1].message)
    scaler = StandardScaler().fit(X * units)
    estimator = clone(SMALL[name]).fit(scaler.transform(X * units))
    found = estimator.grad_log_density(scaler.transform(X * units)) / scaler.scale_
    z = (X - X.mean(0)) / X.std(0)
    wanted = clone(SMALL[name]).fit(z).grad_log_density(z) / (X * units).std(0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


def test_scales_that_suit_a_stein_estimate_are_not_warned_of(X):
    """At a quotient of fifty a third is lost at most, which is no reason for a warning."""
    SteinScoreEstimator().fit(X * [0.02, 1.0])


@pytest.mark.parametrize("name", ["stein", "spectral", "tikhonov"])
def test_constant_columns_are_warned_of(name, X):
    """The score of a Stein estimate was 37261 in place of 0.29."""
    wide = pd.DataFrame(X, columns=["a", "b"]).assign(k=3.0)
    with pytest.warns(UserWarning, match="constant columns, k, which have no density") as told:
        clone(SMALL[name]).fit(wide)
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="constant columns, 2, which"):
        clone(SMALL[name]).fit(wide.to_numpy())


def test_training_stops_early(X):
    settings = {"hidden": (64,), "lr": 1e-2, "validate_every": 5, "random_state": 0}
    stopped = SlicedScoreEstimator(max_steps=3000, patience=3, **settings).fit(X)
    assert stopped.result_.stopped_early
    assert stopped.result_.best_step <= stopped.result_.steps - 15


@pytest.mark.parametrize(("verbose", "shown"), [(1, True), (True, True), (0, False)])
def test_verbose_is_a_number_or_a_flag(verbose, shown, X, capfd):
    """As in scikit-learn, where 1 is usual; it was refused by the name of another argument."""
    clone(SMALL["sliced"]).set_params(verbose=verbose).fit(X)
    assert ("step 10/10" in "".join(capfd.readouterr())) == shown
    with pytest.raises(TypeError, match="verbose must be True, False or a number, got str"):
        clone(SMALL["sliced"]).set_params(verbose="yes").fit(X)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (SteinScoreEstimator(eta=-1.0), "eta must be a finite number, zero or larger"),
        (SteinScoreEstimator(eta=0.0), "eta must be positive for scores at given points, got 0"),
        (SteinScoreEstimator(kernel="box"), 'kernel must be "rbf" or "imq"'),
        (SpectralScoreEstimator(mass=2.0), "mass must lie between 0 and 1"),
        (SpectralScoreEstimator(num_eigen=100), "at most the number of samples, 60, got 100"),
        (KernelExpFamilyEstimator(method="magic"), 'method must be "tikhonov" or "nu"'),
        (KernelExpFamilyEstimator(lam=-1.0), "lam must be positive"),
        (KernelExpFamilyEstimator(num_inducing=0), "num_inducing must be at least 1"),
        (SlicedScoreEstimator(validation_fraction=1.0), "validation_fraction must lie between"),
        (SlicedScoreEstimator(max_steps=0), "max_steps must be at least 1"),
        (SlicedScoreEstimator(hidden=(0,)), "every width must be at least 1"),
    ],
)
def test_bad_arguments(estimator, message, X):
    with pytest.raises(ValueError, match=message):
        estimator.fit(X)


def test_a_column_that_does_not_vary(X):
    X[:, 1] = 3.0
    with pytest.raises(ValueError, match=r"vary in every coordinate, got a constant in \[1\]"):
        SlicedScoreEstimator().fit(X)


def test_kernel_matrices_that_do_not_fit_are_refused_before_they_are_allocated(monkeypatch):
    """80 GB each for 100,000 samples; a machine of 8 GB is imagined."""
    monkeypatch.setattr("scorematching.kernels.memory.total_memory", lambda device: 8e9)
    X = np.random.default_rng(0).normal(size=(100_000, 2))
    counts = {18257: (3, SteinScoreEstimator()), 15811: (4, SpectralScoreEstimator())}
    for most, (matrices, estimator) in counts.items():
        message = f"at most {most} in this memory, got 100000: {matrices} matrices"
        with pytest.raises(ValueError, match=message):
            estimator.fit(X)
    with pytest.raises(ValueError, match=r"give inducing samples .* or use fit_nu_method"):
        KernelExpFamilyEstimator(num_inducing=None).fit(X[:20_000])


def test_the_nu_method_works_in_chunks(monkeypatch, X):
    wanted = KernelExpFamilyEstimator(method="nu").fit(X).grad_log_density(X)
    monkeypatch.setattr("scorematching.kernels.distances._MAX_ENTRIES", 700)
    found = KernelExpFamilyEstimator(method="nu").fit(X).grad_log_density(X)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_copies_of_points_are_held_out_together():
    """Training went on until the network had learned the copies of the points held out."""
    once = np.random.default_rng(0).normal(size=(40, 2))
    X = torch.tensor(np.tile(once, (5, 1)))
    estimator = SlicedScoreEstimator()
    rest, held = estimator._prepared(X, torch.Generator().manual_seed(0))
    assert len(rest) == 5 * 36 and len(held.unique(dim=0)) == len(held) == 4
    assert not (rest[:, None] == held).all(-1).any()


def test_bytes_in_another_order_are_taken(X):
    """Of a data frame, as of a FITS file; the error was one of torch."""
    frame = pd.DataFrame(X.astype(">f8"))
    found = SteinScoreEstimator().fit(frame).grad_log_density(frame)
    np.testing.assert_array_equal(found, SteinScoreEstimator().fit(X).grad_log_density(X))

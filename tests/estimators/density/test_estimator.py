"""DensityEstimator: scikit-learn's conventions, change of variables, defects that were found."""

from __future__ import annotations

import math
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import scorematching as sm
from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.density.normaliser import Normaliser
from tests import oracles
from tests.estimators.density.tables import F64, quick, table
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

CHEAP = ["gaussian", "student-t", "kde", "mixture"]
"""Every base that needs no training."""


@pytest.fixture(scope="module", params=["base", "tilted", "nice"])
def fitted(request):
    """The base alone, a tilted base, and NICE; the tilt has its full size."""
    if request.param == "nice":
        return quick("nice").fit(table())
    if request.param == "base":
        return quick(base=CHEAP).fit(table())
    return quick("mlp", calibrate=False, max_steps=30).fit(table(200))


# Conventions.


@pytest.mark.parametrize("model", ["none", "nice"])
def test_scikit_learn_conventions(model):
    with warnings.catch_warnings():
        # One check is skipped with a warning, because it needs an environment variable of scipy.
        warnings.simplefilter("ignore", SkipTestWarning)
        warnings.filterwarnings("ignore", "X has columns without a density")
        results = check_estimator(quick(model, max_steps=2), on_fail=None)
    failed = [(r["check_name"], r["exception"]) for r in results if r["status"] == "failed"]
    assert not failed and len(results) > 40
    assert any("outlier" in r["check_name"] for r in results)


def test_the_constructor_stores_and_nothing_else():
    given = {"model": "nonsense", "objective": object(), "hidden": [3], "noise": -1.0, "base": 7}
    estimator = DensityEstimator(**given)
    assert {name: estimator.get_params()[name] for name in given} == given
    assert clone(quick(noise=0.25)).noise == 0.25
    for ask in ("score", "score_samples", "grad_log_density", "predict"):
        with pytest.raises(NotFittedError):
            getattr(quick(), ask)(table())
    with pytest.raises(NotFittedError):
        quick().sample()
    assert not hasattr(quick(), "log_z_")


def test_pickled_and_whole(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_samples(table()), fitted.score_samples(table()))
    np.testing.assert_array_equal(again.sample(3, 1), fitted.sample(3, 1))
    assert again.log_z_ == fitted.log_z_


def _likelihood(seed):
    return quick(noise=0.1).set_params(random_state=seed).fit(table()).score(table())


@pytest.mark.slow
def test_fits_in_other_processes():
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(_likelihood)(seed) for seed in (0, 0))
    assert found[0] == pytest.approx(_likelihood(0), rel=ROUTES) and found[0] == found[1]


def test_data_frames_and_their_columns():
    frame = pd.DataFrame(table(), columns=["a", "b"])
    estimator = quick().fit(frame)
    assert estimator.feature_names_in_.tolist() == ["a", "b"]
    # Another memory order changes the order of some sums.
    expected = quick().fit(table()).score_samples(table())
    np.testing.assert_allclose(estimator.score_samples(frame), expected, rtol=ROUTES)
    assert estimator.sample(3).columns.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        estimator.score_samples(frame[["b", "a"]])


def test_pipelines_and_grid_search():
    search = GridSearchCV(quick(), {"base": ["gaussian", "student-t"]}, cv=2).fit(table())
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all() and scores[0] != scores[1]
    pipeline = make_pipeline(StandardScaler(), quick()).fit(table())
    assert pipeline.score_samples(table()).shape == (60,)


def test_random_state_decides_everything():
    state = torch.get_rng_state()
    x = table()
    copy = x.copy()
    settings = {"base": CHEAP, "max_steps": 5}
    a, b = (quick("mlp", **settings).fit(x).score_samples(x) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(x, copy)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_generators_of_numpy(make):
    a, b = (
        quick(noise=0.1).set_params(random_state=make(3)).fit(table()).sample(4, make(5))
        for _ in range(2)
    )
    np.testing.assert_array_equal(a, b)


def test_single_precision():
    """Values far from zero lose digits in single precision, so these are centred."""
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    expected = quick().fit(x.astype(np.float64)).score_samples(x)
    np.testing.assert_allclose(quick().fit(x).score_samples(x), expected, rtol=1e-5)


def test_progress_when_asked(capsys):
    quick("mlp", verbose=1).fit(table(260))
    shown = capsys.readouterr().out
    assert "gaussian: held-out log-likelihood" in shown and "tilt: " in shown
    quick("mlp").fit(table(260))
    assert not any(capsys.readouterr())


# One density in two spaces.


@pytest.mark.parametrize("model", ["none", "nice"])
def test_units_change_the_density_by_their_jacobian(model):
    """Powers of two are exact: the same whitened points, hence ``log p - sum log units``."""
    units = np.array([2.0**-7, 2.0**5])
    a, b = quick(model).fit(table()), quick(model).fit(table() * units)
    expected = a.score_samples(table()) - np.log(units).sum()
    np.testing.assert_allclose(b.score_samples(table() * units), expected, rtol=IDENTITY)
    expected = a.grad_log_density(table()) / units
    np.testing.assert_allclose(b.grad_log_density(table() * units), expected, rtol=IDENTITY)
    assert b.score(table() * units) == pytest.approx(a.score(table()), rel=IDENTITY)


def test_gradient_is_that_of_the_log_density(fitted):
    """Differences of fourth order, in the units of each column."""
    x = table(5, seed=1)
    for column, unit in enumerate(x.std(0)):
        step = np.zeros(2)
        step[column] = 1e-3 * unit
        near = fitted.score_samples(x + step) - fitted.score_samples(x - step)
        far = fitted.score_samples(x + 2 * step) - fitted.score_samples(x - 2 * step)
        slope = (8 * near - far) / 12e-3
        found = fitted.grad_log_density(x)[:, column] * unit
        np.testing.assert_allclose(found, slope, rtol=1e-6, atol=1e-6)


def test_score_is_minus_the_exact_loss_of_whitened_points(fitted):
    x = table(4, seed=1)
    z = fitted.whitening_(torch.tensor(x))

    def log_density(z):
        return fitted.density_(fitted._whiten.inverse(z))

    loss = oracles.score_matching(log_density, z).mean().item()
    assert fitted.score(x) == pytest.approx(-loss, rel=ROUTES)


@pytest.mark.parametrize("tilt", [{"model": "none"}, {"max_steps": 30, "calibrate": False}])
@pytest.mark.parametrize("refit", [True, False])
def test_score_counts_a_base_without_gradients(tilt, refit):
    """The score of a density of scikit-learn's was that of the tilt alone, or an error of torch."""
    x, rows = table(300), table(20, seed=1)
    base = GaussianMixture(2, random_state=0)
    if not refit:
        base = Frozen(base.fit(x))
    found = DensityEstimator(base=base, random_state=0, **tilt).fit(x)
    z = found.whitening_(torch.tensor(rows))

    def log_density(z):
        points = found.whitening_.inverse(z).numpy()
        return torch.tensor(found.unnormalised_log_density(points))

    loss, here, size = torch.zeros(len(z), dtype=F64), log_density(z), 1e-3
    for step in size * torch.eye(2, dtype=F64):
        up, down = log_density(z + step), log_density(z - step)
        loss += (up - 2 * here + down) / size**2 + 0.5 * ((up - down) / 2 / size).square()
    assert found.score(rows) == pytest.approx(-loss.mean().item(), rel=0.05)


def test_samples_of_a_sorted_base_are_those_of_the_density():
    """Their mean was off by half a standard deviation: the first ones of those that stay count."""
    x = np.concatenate([table(200) - 4, table(200) + 4])
    base = GaussianMixture(2, random_state=0)
    tilt = {"base": base, "calibrate": False, "max_steps": 5, "random_state": 0}
    found = DensityEstimator(**tilt).fit(x)
    drawn = found.sample(2000, random_state=0)
    assert np.abs((drawn.mean(0) - x.mean(0)) / x.std(0)).max() < 0.15


class Frozen:
    """A fitted density as it is, without ``fit``."""

    def __init__(self, density):
        self.score_samples, self.draw = density.score_samples, density.sample

    def sample(self, n):
        return self.draw(n)


def test_integrates_to_one(fitted):
    """A sum over a fine grid; a missing Jacobian is off by 4.6 here."""
    z = torch.linspace(-20, 20, 401, dtype=F64)
    x = fitted.whitening_.inverse(torch.cartesian_prod(z, z))
    volume = math.exp(-fitted.whitening_.log_abs_det(x[:1]).item()) * 0.1**2
    total = np.exp(fitted.score_samples(x.numpy())).sum() * volume
    # The tails of a Student-t hold up to a percent beyond 20 standard deviations.
    assert abs(math.log(total)) < 5 * fitted.log_z_standard_error_ + 0.02


def test_samples_have_the_density(fitted):
    """``E[grad log p] = 0`` over the samples, coordinate by coordinate."""
    x = fitted.sample(2000, random_state=3)
    assert x.shape == (2000, 2)
    assert_mean(fitted.grad_log_density(x) * table().std(0), 0.0, detect=0.3)
    np.testing.assert_array_equal(x[:5], fitted.sample(2000, random_state=3)[:5])


def test_errors_on_request(fitted):
    values, errors = fitted.score_samples(table(), return_error=True)
    np.testing.assert_array_equal(values, fitted.score_samples(table()))
    assert (errors == fitted.log_z_standard_error_).all()
    raw = fitted.score_samples(table(), normalised=False)
    np.testing.assert_allclose(raw - fitted.log_z_, values, rtol=IDENTITY)
    np.testing.assert_array_equal(raw, fitted.unnormalised_log_density(table()))


def test_bracket_of_log_z(fitted):
    low, high = fitted.log_z_bracket(random_state=0)
    slack = 0.1 + 5 * fitted.log_z_standard_error_
    assert low - slack < fitted.log_z_ < high + slack


# Models and objectives.


@pytest.mark.parametrize("objective", ["ssm-vr", "SSM", "sm", sm.SlicedScoreMatchingVR()])
def test_a_tilt_learns_what_the_base_lacks(objective):
    """Two clusters on a Gaussian base: the tilt raises the held-out likelihood by itself."""
    rng = np.random.default_rng(0)
    x, held_out = (
        np.r_[rng.normal(-2, 0.5, (300, 1)), rng.normal(2, 0.5, (300, 1))] for _ in range(2)
    )
    settings = {"base": "gaussian", "objective": objective, "hidden": (32, 32), "random_state": 0}
    tilted = DensityEstimator("mlp", max_steps=200, **settings).fit(x)
    plain = DensityEstimator("none", base="gaussian", random_state=0).fit(x)
    gain = tilted.score_samples(held_out).mean() - plain.score_samples(held_out).mean()
    assert tilted.tilt_size_ > 0 and gain > 0.3  # all there is to gain is 0.62


@pytest.mark.slow
def test_a_kernel_tilt_learns_too():
    rng = np.random.default_rng(0)
    x = np.r_[rng.normal(-2, 0.5, (300, 1)), rng.normal(2, 0.5, (300, 1))]
    settings = {"base": "gaussian", "num_inducing": 10, "max_steps": 30, "random_state": 0}
    assert DensityEstimator("dkef", **settings).fit(x).tilt_size_ > 0


def test_nice_by_maximum_likelihood():
    estimator = quick("nice", objective="mle", max_steps=100).fit(table(400))
    assert estimator.score(table(400, seed=1)) > 0.85


def test_copies_stay_together_when_noise_is_added():
    """If a copy of a held-out row were trained on, narrow kernels would look right."""
    x = np.random.default_rng(0).normal(size=(60, 3)).round(1)
    once, often = (
        quick(base=["gaussian", "kde"], dequantise=True).fit(rows)
        for rows in (x, np.repeat(x, 8, axis=0))
    )
    assert often.held_out_log_likelihood_ < once.held_out_log_likelihood_ + 0.7


def test_noise_is_in_whitened_units():
    """With noise of standard deviation 1 a variance of 1 becomes 2."""
    x = 100 * np.random.default_rng(0).normal(size=(800, 1))
    slope = np.polyfit(x[:, 0], quick(noise=1.0).fit(x).grad_log_density(x)[:, 0], 1)[0]
    assert slope * 100**2 == pytest.approx(-0.5, abs=0.1)


def test_a_base_of_ones_own():
    """A mixture that scikit-learn fits, one that is already fitted, and torch's normal."""
    x = table(200)
    two = GaussianMixture(2, random_state=0)
    found = quick(base=two).fit(x)
    again = quick(base=GaussianMixture(2, random_state=0).fit(x)).fit(x)  # fitted anew
    np.testing.assert_allclose(again.score_samples(x), found.score_samples(x))
    location, scale = torch.tensor(x.mean(0)), torch.tensor(x.std(0))
    own = torch.distributions.Independent(torch.distributions.Normal(location, scale), 1)
    given = quick(base=own).fit(x)
    expected = own.log_prob(torch.tensor(x))
    np.testing.assert_allclose(given.score_samples(x), expected, rtol=1e-9)
    assert np.isfinite(found.sample(5)).all() and np.isfinite(given.sample(5)).all()
    np.testing.assert_array_equal(given.sample(5, 1), given.sample(5, 1))


# Unusual rows.


def test_unusual_rows():
    estimator = quick(contamination=0.2).fit(table(100))
    assert (estimator.predict(table(100)) == -1).sum() == 20
    far = table(100) + 100 * table(100).std(0)
    assert (estimator.predict(far) == -1).all()
    assert (quick().fit_predict(table(100)) == -1).sum() == 10


def test_the_share_of_unusual_rows_is_that_of_the_rows_without_noise():
    """The threshold was that of rows with the noise of the fit: 8 % were unusual, not 25 %."""
    x = table(400)
    assert (quick(noise=1.0, contamination=0.25).fit_predict(x) == -1).sum() == 100


@pytest.mark.parametrize("columns", [1, 5])
def test_the_row_with_a_wrong_value_is_the_most_unusual(columns):
    """A component of a mixture lay on it, and it was the most usual of all."""
    x = np.random.default_rng(0).normal(size=(100, columns))
    x[7, 0] = -999
    base = ("gaussian", "student-t", "kde", "mixture")
    estimator = DensityEstimator("none", base=base, random_state=0).fit(x)
    assert estimator.score_samples(x).argmin() == 7


def test_ranking_needs_no_log_z():
    """Benign against malignant tumours: the density of benign ones ranks well."""
    X, benign = load_breast_cancer(return_X_y=True)
    estimator = DensityEstimator("none", base="student-t")
    with pytest.warns(UserWarning, match=r"several rows with one value \(0, 0"):  # no concavity
        estimator.fit(X[benign == 1])
    auc = roc_auc_score(benign, estimator.unnormalised_log_density(X))
    assert auc > 0.94


def test_without_log_z_everything_else_works():
    estimator = quick("mlp", calibrate=False, max_steps=30).fit(table(200))
    estimator.density_.normaliser = Normaliser(0.0, math.nan, 1.0, "none", "both are thin")
    with pytest.raises(ValueError, match=r"got no estimate: both are thin; use score_samples"):
        estimator.score_samples(table())
    for ask in ("score", "grad_log_density", "unnormalised_log_density", "predict"):
        assert np.isfinite(getattr(estimator, ask)(table())).all()
    assert np.isfinite(estimator.sample(5)).all()


# Defects that were found by trying.


def test_discrete_columns_are_named_and_do_not_win():
    """``score`` used to be 2.9e17 here, which a grid search then maximised."""
    rng = np.random.default_rng(0)
    X = np.c_[rng.integers(0, 2, 500), rng.normal(size=500)]
    with pytest.warns(UserWarning, match=r"column 0: discrete or rounded \(2 different values\)"):
        estimator = DensityEstimator("none", base=CHEAP, random_state=0).fit(X)
    filled = DensityEstimator("none", base=CHEAP, dequantise=True, random_state=0).fit(X)
    for found in (estimator, filled):
        assert 0 < found.score(X) < 10
        # The entropies of the cells, of the column and of the noise, log 2 + 1.42 + 0.
        assert found.held_out_log_likelihood_ < -2


@pytest.mark.parametrize("kind", ["counts", "levels", "booleans"])
def test_counts_levels_and_booleans(kind):
    rng = np.random.default_rng(0)
    X = {
        "counts": rng.poisson(3, (300, 2)),
        "levels": np.c_[rng.integers(0, 3, 300), rng.normal(size=300)],
        "booleans": rng.random((300, 3)) < 0.4,
    }[kind]
    estimator = DensityEstimator("none", base=CHEAP, dequantise=True, random_state=0).fit(X)
    assert np.isfinite(estimator.score_samples(X)).all() and math.isfinite(estimator.score(X))
    with pytest.warns(UserWarning, match="discrete or rounded"):
        quick().fit(X)


LAWS = {
    "exponential": lambda rng: rng.exponential(size=(500, 1)),
    "cauchy": lambda rng: rng.standard_cauchy((500, 1)),
    "outlier": lambda rng: np.r_[rng.normal(size=(300, 2)), [[1e6, 0.0]]],
    "five": lambda rng: rng.normal(size=(5, 2)),
    "ten": lambda rng: rng.normal(size=(10, 3)),
    "wide": lambda rng: rng.normal(size=(120, 200)),
}


@pytest.mark.parametrize("name", LAWS)
def test_nothing_clean_is_refused(name):
    X = LAWS[name](np.random.default_rng(0))
    bases = CHEAP if X.shape[1] < 100 else ["gaussian", "kde"]
    model = "mlp" if X.shape[1] < 100 else "none"
    estimator = DensityEstimator(model, base=bases, max_steps=20, random_state=0).fit(X)
    assert np.isfinite(estimator.score_samples(X)).all()
    assert np.isfinite(estimator.grad_log_density(X)).all()
    for seed in range(4):
        assert np.isfinite(estimator.sample(20, seed)).all()


@pytest.mark.parametrize("n", [5, 10, 20, 30, 50])
def test_few_points_are_never_much_worse_than_a_gaussian(n):
    """In each of four tables; N(0, 1) with N = 30 to 50 once had -10 and -14 in some fits."""
    losses = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, test = rng.normal(size=(n, 1)), rng.normal(size=(2000, 1))
        found = DensityEstimator("none", base=CHEAP, random_state=seed).fit(x)
        mean, std = x.mean(), max(x.std(), 1e-3)
        gaussian = -0.5 * ((test - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
        losses.append(gaussian.mean() - found.score_samples(test).mean())
    assert max(losses) < 0.3


def test_two_clusters_in_ten_dimensions():
    """The truth has -11.42; a single Gaussian base had -12.25 at any number of points."""
    rng = np.random.default_rng(0)

    def draw(n):
        return np.r_[rng.normal(-2, 1, (n // 2, 10)), rng.normal(2, 0.5, (n // 2, 10))]

    test = draw(2000)
    few, many = (
        DensityEstimator("none", base=["gaussian", "mixture"], random_state=0).fit(draw(n))
        for n in (200, 2000)
    )
    assert few.score_samples(test).mean() < many.score_samples(test).mean()
    assert many.score_samples(test).mean() > -11.6
    assert np.abs(many.sample(1000, 0)).max() < 8


def test_many_points_sample_quickly():
    X = np.random.default_rng(0).normal(size=(20_000, 3))
    estimator = DensityEstimator("none", base=["gaussian", "student-t"], random_state=0).fit(X)
    assert estimator.sample(100_000, 0).shape == (100_000, 3)


# Refusals.

BAD_TABLES = {
    "4 different points or more, got 3 with n_samples = 3": table(3, 1),
    "4 different points or more, got 3 with n_samples = 30": np.repeat(table(3, 1), 10, axis=0),
    "copies of one point": np.ones((10, 2)),
    "got NaN in row 3, column 1": np.where(np.arange(20).reshape(10, 2) == 7, np.nan, 1.0),
    r"got infinity in row 0, column 0 \(NaN or inf in 2 places of 1 rows\)": np.r_[
        [[np.inf, -np.inf]], table(9)
    ],
}


@pytest.mark.parametrize(("message", "x"), list(BAD_TABLES.items()), ids=range(len(BAD_TABLES)))
def test_tables_without_a_density(message, x):
    with pytest.raises(ValueError, match=message):
        quick().fit(x)


def test_categories_are_refused_with_advice():
    frame = pd.DataFrame({"a": pd.Categorical(["u", "v"] * 10), "b": np.arange(20.0)})
    with pytest.raises(ValueError, match=r"got categories, .* in 'a' .*OrdinalEncoder"):
        quick().fit(frame)
    frame["a"] = np.r_[np.nan, np.arange(19.0)]
    with pytest.raises(ValueError, match="got NaN in row 0, column 'a'"):
        quick().fit(frame)


def test_columns_that_are_set_aside_come_back():
    x = table(50, 2)
    X = np.c_[x[:, 0], np.full(50, 7.0), x[:, 1], x @ [2.0, -1.0] + 3]
    with pytest.warns(UserWarning, match=r"column 1: constant .* column 3: set aside"):
        estimator = quick().fit(X)
    np.testing.assert_allclose(estimator.score_samples(X), quick().fit(x).score_samples(x))
    sample = estimator.sample(10, 0)
    np.testing.assert_allclose(sample[:, 1], 7.0)
    np.testing.assert_allclose(sample[:, 3], sample[:, [0, 2]] @ [2.0, -1.0] + 3)
    assert (estimator.grad_log_density(X)[:, [1, 3]] == 0).all()
    X[0, 1] = 8.0
    with pytest.warns(
        UserWarning, match="differs in 1 rows from the values of column 1 that follow"
    ):
        estimator.score_samples(X)


def test_one_column():
    assert quick().fit(table(200, 1)).score_samples(table(5, 1)).shape == (5,)
    with pytest.raises(ValueError, match='n_features = 1; use model="mlp"'):
        quick("nice").fit(table(30, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "flow"}, 'model must be "mlp", "dkef", "none" or "nice", got .flow.'),
        ({"objective": "elbo"}, "objective must be one of ssm-vr, ssm, sm, mle"),
        ({"objective": "mle"}, "objective must be one for unnormalised models"),
        ({"objective": sm.DenoisingScoreMatching(0.3)}, "must be exact or sliced score matching"),
        ({"base": "spline"}, 'base must be "auto", one or several of gaussian, .* got .spline.'),
        ({"base": []}, 'base must be "auto"'),
        ({"noise": -1.0}, r"noise must be zero or a positive number, .* got -1.0; try 0"),
        ({"validation_fraction": 1.0}, "validation_fraction must lie between 0 and 1, got 1.0"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"num_inducing": 0}, "num_inducing must be at least 1"),
        ({"num_importance": 0}, "num_importance must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"contamination": 0.6}, "contamination must be above 0 and at most 0.5"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        quick(**{"model": "none", **settings}).fit(table())


# Time.


def test_time_ends_the_search_with_what_was_tried(generator: torch.Generator) -> None:
    X = torch.randn(150, 2, generator=generator, dtype=torch.float64).numpy()
    lines: list[str] = []
    with pytest.warns(UserWarning, match="search for a base ended early, because the time limit"):
        density = DensityEstimator(random_state=0, max_seconds=1e-6, verbose=lines.append).fit(X)
    assert list(density.weights_) == ["gaussian"] and density.n_steps_ == 0
    assert lines[0].startswith("gaussian: ") and "left out" in lines[1]
    assert np.isfinite(density.score_samples(X)).all()


def test_time_ends_training_with_the_best_weights(generator: torch.Generator) -> None:
    X = torch.randn(200, 2, generator=generator, dtype=torch.float64).numpy()
    settings = {"random_state": 0, "max_steps": 500, "patience": 500}
    with pytest.warns(UserWarning, match="training ended at step 10 of at most 500"):
        density = DensityEstimator("nice", hidden=(8,), max_seconds=1e-6, **settings).fit(X)
    assert density.n_steps_ == density.history_[-1].step == 10  # the first validation
    with pytest.raises(ValueError, match="max_seconds"):
        DensityEstimator(max_seconds=0).fit(X)

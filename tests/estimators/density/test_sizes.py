"""DensityEstimator from five rows to 100,000, from one column to 200; threads and few points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info

from scorematching.estimators.density import DensityEstimator, estimator, threads
from scorematching.estimators.density.bases.flow import has_flows
from scorematching.estimators.density.learning import _MIN_TILT_POINTS
from scorematching.estimators.density.threads import threads_for
from scorematching.estimators.density.tilted import sample_tilted
from tests.estimators.density.tables import normal, quick, table

CHEAP = ["gaussian", "student-t", "kde", "mixture"]


def check_answers(found, X):
    """Every method gives finite answers of the right shape."""
    few = X[:20]
    assert np.isfinite(found.score_samples(few)).all()
    assert found.grad_log_density(few).shape == few.shape
    assert np.isfinite(found.grad_log_density(few)).all()
    assert found.sample(7, 0).shape == (7, X.shape[1]) and np.isfinite(found.sample(7, 0)).all()
    assert set(found.predict(few)) <= {-1, 1}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), [(5, 1), (5, 30), (40, 7), (300, 1), (80, 100), (1000, 12)])
def test_tables_of_every_size(n, d, dtype):
    X = np.random.default_rng(0).normal(size=(n, d)).astype(dtype)
    check_answers(quick("mlp", base=["gaussian", "student-t"], max_steps=5).fit(X), X)


@pytest.mark.slow
def test_a_hundred_thousand_rows():
    """Two clusters in ten dimensions: within 0.02 of the truth, -11.42, with a base of its own
    choice, and 100,000 samples without a copy."""
    rng = np.random.default_rng(0)
    X, test = (
        np.r_[rng.normal(-2, 1, (n, 10)), rng.normal(2, 0.5, (n, 10))] for n in (50_000, 2000)
    )
    found = DensityEstimator(base=CHEAP, random_state=0).fit(X)
    check_answers(found, test)
    truth = GaussianMixture(2, means_init=np.repeat([[-2.0], [2.0]], 10, axis=1)).fit(X)
    assert found.score_samples(test).mean() > truth.score(test) - 0.02
    assert len(np.unique(found.sample(100_000, 0), axis=0)) == 100_000


@pytest.mark.slow
@pytest.mark.skipif(not has_flows(), reason="the extra flows is not installed")
def test_two_hundred_columns():
    """With every candidate and the defaults; not worse than a shrunk Gaussian."""
    rng = np.random.default_rng(0)
    X, test = rng.normal(size=(400, 200)), rng.normal(size=(500, 200))
    found = DensityEstimator(random_state=0).fit(X)
    check_answers(found, X)
    plain = quick().fit(X)
    assert found.score_samples(test).mean() > plain.score_samples(test).mean() - 0.3


# Few points.


def test_a_tilt_needs_points_to_choose_its_size():
    """No step of training below 250 rows, unless the size is given."""
    few, enough = table(_MIN_TILT_POINTS - 1), table(_MIN_TILT_POINTS)
    assert _MIN_TILT_POINTS == 250
    without = quick("mlp").fit(few)
    assert without.n_steps_ == 0 and without.tilt_size_ == 0 and not without.history_
    assert quick("mlp").fit(enough).history_
    given = quick("mlp", calibrate=False).fit(few)
    assert given.n_steps_ > 0 and given.tilt_size_ == 1


@pytest.mark.parametrize("n", [20, 45])
def test_few_points_in_several_dimensions(n):
    """Within 0.3 of a Gaussian by maximum likelihood, in each of three tables, with a tilt."""
    losses = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, test = rng.normal(size=(n, 3)), rng.normal(size=(2000, 3))
        bases = ["gaussian", "student-t", "kde"]
        found = DensityEstimator(base=bases, random_state=seed).fit(x)
        gaussian = GaussianMixture(1).fit(x).score(test)
        losses.append(gaussian - found.score_samples(test).mean())
    assert max(losses) < 0.3


def test_a_base_that_is_right_stays_alone_or_loses_nothing():
    """Normal points on a normal base: there is nothing to learn, and a line says what was done."""
    rng = np.random.default_rng(0)
    x, test = rng.normal(size=(600, 2)), rng.normal(size=(4000, 2))
    lines = []
    settings = {"base": "gaussian", "max_steps": 100, "random_state": 0}
    tilted = DensityEstimator("mlp", verbose=lines.append, **settings).fit(x)
    plain = DensityEstimator("none", **settings).fit(x)
    assert any("tilt: none" in line or "tilt: size 0.00" in line for line in lines)
    assert tilted.tilt_size_ == 0 and tilted.log_z_ == 0
    np.testing.assert_array_equal(tilted.score_samples(test), plain.score_samples(test))


# Samples.


def auc(samples, rows):
    """Of a forest that tells samples from rows, cross-validated; 0.5 is chance."""
    X, y = np.r_[samples, rows], np.repeat([0, 1], [len(samples), len(rows)])
    forest = RandomForestClassifier(50, min_samples_leaf=5, random_state=0)
    return roc_auc_score(y, cross_val_predict(forest, X, y, cv=3, method="predict_proba")[:, 1])


def test_a_classifier_cannot_tell_samples_from_rows():
    """Two moons; it can tell those of a Gaussian."""
    x, test = (make_moons(600, noise=0.1, random_state=seed)[0] for seed in (0, 1))
    found = DensityEstimator("none", base=["gaussian", "kde"], random_state=0).fit(x)
    assert auc(found.sample(600, 0), test) < 0.62
    assert auc(quick().fit(x).sample(600, 0), test) > 0.75


def test_many_samples_take_few_evaluations(generator):
    """Of a tilt that keeps two in three; 100,000 of a density took a minute."""
    evaluated = []

    def tilt(x):
        evaluated.append(len(x))
        return 0.5 * torch.tanh(x[:, 0])

    assert len(sample_tilted(tilt, normal(2), 100_000, generator).unique(dim=0)) == 100_000
    assert sum(evaluated) < 250_000


def test_many_samples_of_a_steep_tilt_are_all_different(generator):
    """Of a tilt that keeps one in 25."""
    tail = lambda x: torch.where(x[:, 0] > 1.75, 0.0, -torch.inf)  # noqa: E731
    assert len(sample_tilted(tail, normal(1), 100_000, generator).unique()) == 100_000


# Pipelines.


def test_grid_search_in_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), quick())
    grid = {"densityestimator__base": ["gaussian", "student-t"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(table())
    assert search.best_estimator_.score_samples(table()).shape == (60,)
    assert (search.best_estimator_.predict(table()) == -1).sum() == 6


# Threads.


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_small_tables_take_one_thread():
    """In torch and in every library that threadpoolctl knows, and only inside."""
    before = threadpool_info()
    with threads_for(200_000):
        assert torch.get_num_threads() == 1
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}
    assert torch.get_num_threads() == 2 and threadpool_info() == before
    with threads_for(200_001):
        assert torch.get_num_threads() == 2 and threadpool_info() == before
    with pytest.raises(KeyError), threads_for(1):
        raise KeyError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_fit_leaves_the_threads_as_they_were(monkeypatch):
    seen, learn = [], estimator.learn_density

    def watched(*arguments):
        seen.append(torch.get_num_threads())
        return learn(*arguments)

    monkeypatch.setattr(estimator, "learn_density", watched)
    quick().fit(table())
    assert seen == [1] and torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="base must be"):
        quick(base="spline").fit(table())
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(threads, "_SMALL_ENTRIES", 119)
    quick().fit(table(60, 2))
    assert seen == [1, 1, 2]

"""Tied values have no density: the narrowest peaks on them must not win a comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV

from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.density.bases.kde import fit_kde
from scorematching.estimators.density.gaps import Gaps
from tests.estimators.density.tables import quick


def rain(rng, n, share=0.5):
    """Days without rain, and amounts that differ."""
    return np.where(rng.random(n) < share, 0.0, rng.exponential(size=n))


def make(kind, n=200, seed=0):
    """A column with ties beside a continuous one."""
    rng = np.random.default_rng(seed)
    column = {
        "binary": lambda: rng.integers(0, 2, n),
        "rare": lambda: rng.random(n) < 0.03,
        "levels": lambda: rng.integers(0, 3, n),
        "counts": lambda: rng.poisson(3, n),
        "rounded": lambda: rng.normal(size=n).round(1),
        "rain": lambda: rain(rng, n),
        "rounded rain": lambda: rain(rng, n).round(2),
    }[kind]()
    return np.c_[column, rng.normal(size=n)].astype(float)


KINDS = ["binary", "rare", "levels", "counts", "rounded", "rain", "rounded rain"]


@pytest.mark.filterwarnings("ignore:X has columns without a density")
@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_search_over_bases_and_noise(kind):
    """Scores of peaks were 21 to 1e6, or nan; those of the noise are the same for both settings."""
    mixture = ["mixture"] if kind in ("binary", "rounded rain") else []
    grid = {"base": ["gaussian", "student-t", "kde", *mixture], "dequantise": [False, True]}
    folds = [tuple(np.arange(200).reshape(2, 100))]
    search = GridSearchCV(quick(), grid, cv=folds, refit=False, error_score="raise").fit(make(kind))
    scores = search.cv_results_["mean_test_score"]
    assert (np.abs(scores) < 20).all()
    np.testing.assert_allclose(scores[::2], scores[1::2])


@pytest.mark.filterwarnings("ignore:X has columns without a density")
@pytest.mark.parametrize("base", ["nsf", "maf"])
def test_flows(base):
    pytest.importorskip("zuko")
    X = make("binary", 120)
    assert abs(quick(base=base).fit(X[:60]).score(X[60:])) < 30


@pytest.mark.filterwarnings("ignore:X has columns without a density")
@pytest.mark.parametrize("model", ["mlp", "nice"])
def test_models(model):
    X = make("binary")
    estimator = quick(model, calibrate=False, max_steps=30).fit(X[:100])
    assert abs(estimator.score(X[100:])) < 20


def test_a_base_that_is_all_peaks_loses():
    """The bug beside it: without noise at the points to score it wins by far."""
    X = make("binary")
    at_zero_and_one = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(2, dtype=torch.float64)),
        torch.distributions.Independent(
            torch.distributions.Normal(
                torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
                torch.tensor([0.05, 1.0], dtype=torch.float64),
            ),
            1,
        ),
    )
    peaks, smooth = (quick(base=base, dequantise=True) for base in (at_zero_and_one, "gaussian"))
    assert peaks.fit(X).score(X) < -1000 < smooth.fit(X).score(X) < 2
    peaks._gaps = None
    assert peaks.score(X) > 50


def test_likelihood_is_at_most_that_of_the_cells():
    """``E log p(x + u) <= log P(cell) - log g``; two values, equally likely: -log 2 in a column."""
    X = make("binary", 1000)[:, :1]
    X = np.c_[X, make("binary", 1000, seed=1)[:, :1]]
    for base in ("gaussian", "student-t", "kde"):
        found = quick(base=base, dequantise=True).fit(X).held_out_log_likelihood_
        assert found < -2 * math.log(2)


@pytest.mark.parametrize("kind", ["binary", "levels", "counts", "rain"])
def test_columns_are_named(kind):
    message = "several rows with one value \\(0\\)" if kind == "rain" else "discrete or rounded"
    with pytest.warns(UserWarning, match=f"column 0: {message}"):
        quick().fit(make(kind))


def test_noise_of_discrete_and_common_values(generator):
    x = torch.tensor(np.c_[make("counts", 400), make("rain", 400)])
    gaps = Gaps.fit(x)
    assert gaps.width.tolist() == [0.5, 0.0, 0.0, 0.0]
    assert gaps.common[:, 2].tolist() == [0.0] and gaps.common[:, [0, 1, 3]].isnan().all()
    noise = gaps.fill(x, generator) - x
    assert 0.45 < noise[:, 0].abs().max() <= 0.5
    dry = x[:, 2] == 0
    assert noise[dry, 2].abs().max() <= gaps.common_width[2] and (noise[~dry, 2] == 0).all()
    # Silverman's rule for the amounts, whose standard deviation is 1.
    assert 0.1 < gaps.common_width[2] < 0.4
    assert (noise[:, [1, 3]] == 0).all()


def test_continuous_tables_and_copies_are_left_alone():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(50, 2)))
    assert not Gaps.fit(x).any
    copies = np.repeat(x.numpy(), 10, axis=0)
    assert not quick().fit(copies)._gaps.any


def test_copies_do_not_narrow_kernels():
    """Left out one at a time, a copy of every point stays, and the least bandwidth wins."""
    x = torch.tensor(np.random.default_rng(0).normal(size=(60, 2)))
    once, often = (fit_kde(rows).bandwidth for rows in (x, x.repeat(8, 1)))
    assert 0.4 * once < often < 1.1 * once


def test_several_common_values():
    """A column of diabetes has five: a ratio that was rounded for most patients, not for all."""
    X = load_diabetes().data
    with pytest.warns(UserWarning, match=r"column 7: several rows with one value \(-0.0763945, "):
        estimator = DensityEstimator(
            "none", base=["gaussian", "student-t"], dequantise=True, random_state=0
        ).fit(X)
    assert np.isfinite(estimator.score_samples(X)).all() and abs(estimator.score(X)) < 100


def test_frequent_values_on_a_grid_are_rounded(generator):
    """Sugar of red wine: most values are 1.8, 1.9 ... 2.3, in a column with a long tail."""
    sugar = (1.5 + torch.randn(1000, generator=generator).exp() * 0.5).double()
    column = torch.cat([sugar.round(decimals=1), torch.linspace(3, 15, 60).double()])
    gaps = Gaps.fit(torch.stack([column, column.cos()], 1))
    assert not gaps.common.isfinite()[:, 0].any()
    assert gaps.width[0].item() == pytest.approx(0.05, abs=0.02)


def test_a_code_for_missing_in_few_rows_is_no_peak():
    """In 2 % of the rows it had hardly any noise, and these rows were the most usual of all."""
    x = np.random.default_rng(0).normal(size=(1000, 2))
    x[::50, 0] = -999
    with pytest.warns(UserWarning, match="several rows with one value"):
        log_densities = quick(base=("gaussian", "mixture")).fit(x).score_samples(x)
    assert log_densities[::50].max() < np.median(log_densities)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("rows", "codes"), [(300, 3), (300, 9), (1000, 40)])
def test_a_far_code_in_few_rows_is_no_peak(rounded, rows, codes):
    """Three to nine rows had hardly any noise, as had forty in a column of whole numbers."""
    x = 50 + 10 * np.random.default_rng(0).normal(size=(rows, 2))
    x = x.round() if rounded else x
    x[:codes, 0] = -999
    gaps = Gaps.fit(torch.tensor(x))
    assert gaps.common[:, 0].tolist() == [-999.0] and gaps.common[:, 1].isnan().all()
    with pytest.warns(UserWarning, match=r"column 0: several rows with one value \(-999\)"):
        fitted = quick(base=("gaussian", "student-t", "mixture")).fit(x)
    log_densities = fitted.score_samples(x)
    assert np.quantile(log_densities[codes:], 0.4) > log_densities[:codes].mean()


def test_far_values_that_are_no_codes(generator):
    """A second cluster of whole numbers, heavy tails of rounded values, few values."""
    n = 2000
    far = torch.arange(n) < n // 20
    z = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    cluster = torch.where(far, 200 + 3 * z[:, 0], 20 + 5 * z[:, 0]).round()
    tails = (z[:, 1] / z[:, 2].abs()).round(decimals=1)
    levels = torch.arange(n).double() % 5
    assert Gaps.fit(torch.stack([cluster, tails, levels], 1)).common.isnan().all()

"""The comparison of two models: closed forms, kinds of models, verdicts, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.datasets import load_wine

import scorematching as sm
from scorematching import LogDensityField, VectorField
from scorematching.distributions import Gaussian
from scorematching.evaluation import Estimate, compare, score_matching_losses
from scorematching.evaluation.compare import Comparison
from tests.statistics import assert_mean
from tests.tolerances import ROUTES

F64 = torch.float64
NARROW = Gaussian(torch.zeros(2, dtype=F64), 0.5 * torch.eye(2, dtype=F64))


def points(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_difference_by_hand():
    """Scores -x and -2x: the losses are |x|^2 / 2 - 2 and 2 |x|^2 - 4."""
    x = points(50)
    r2 = x.square().sum(1)
    wanted = Estimate.of((r2 / 2 - 2) - (2 * r2 - 4))
    found = compare(lambda x: -x, NARROW, x)
    assert found.difference.mean == pytest.approx(wanted.mean, rel=ROUTES)
    assert found.difference.standard_error == pytest.approx(wanted.standard_error, rel=ROUTES)
    assert found.b.mean == pytest.approx((2 * r2 - 4).mean().item(), rel=ROUTES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_decides_nothing(dtype):
    """One model in two forms: the verdict was "a is better" with p = 0."""
    x = points(4000).to(dtype)
    third = torch.tensor(1 / 3, dtype=dtype)
    found = compare(lambda x: -third * x, lambda x: -(x / 3) * (1 + torch.finfo(dtype).eps), x)
    assert found.better is None and found.difference.mean == 0
    assert compare(lambda x: -x, lambda x: -2 * x, x).better == "a"


def test_clusters_by_hand():
    """Every point three times is no more than once; errors were too small by the root of three."""
    x = points(50)
    labels = np.tile(np.arange(50), 3)
    found = compare(lambda x: -x, NARROW, x.repeat(3, 1), cluster=labels)
    once = compare(lambda x: -x, NARROW, x)
    for name in ("difference", "a", "b"):
        clustered, single = getattr(found, name), getattr(once, name)
        assert clustered.mean == pytest.approx(single.mean, rel=ROUTES)
        assert clustered.standard_error == pytest.approx(single.standard_error, rel=ROUTES)
    uneven = np.arange(50) % 7
    d = (4 - 2 - 1.5 * x.square().sum(1)).numpy()
    sums = np.array([(d - d.mean())[uneven == k].sum() for k in range(7)])
    error = compare(lambda x: -x, NARROW, x, cluster=uneven).difference.standard_error
    assert error == pytest.approx(math.sqrt((sums**2).sum() * 7 / 6) / 50, rel=ROUTES)
    with pytest.raises(ValueError, match="cluster must hold one label per row"):
        compare(lambda x: -x, NARROW, x, cluster=uneven[:9])


def test_difference_is_that_of_fisher_divergences():
    """On N(0, I) the divergences of the two are 0 and ``0.5 E|x|^2 = 1``."""
    found = [compare(lambda x: -x, NARROW, points(100, s)).difference.mean for s in range(200)]
    assert_mean(torch.tensor(found, dtype=F64), -1.0, detect=0.2)


def test_kinds_of_models():
    x = points(40)
    estimator = sm.SteinScoreEstimator().fit(points(60, 1).numpy())
    wanted = score_matching_losses(NARROW, x)
    kinds = [NARROW, lambda x: NARROW.log_density(x), LogDensityField(NARROW)]
    kinds += [NARROW.score, VectorField(NARROW.score)]
    for kind in kinds:
        for X in (x, x.numpy()):
            assert compare(kind, estimator, X).a.mean == pytest.approx(wanted.mean().item())
    assert compare(estimator, NARROW, x).a.mean == pytest.approx(-estimator.score(x.numpy()))


@pytest.mark.parametrize("base", ["kde", "mixture", ("gaussian", "mixture")])
def test_density_estimators_of_narrow_and_transformed_parts(base):
    # Narrow kernels looked cut from the graph, and the score of transformed parts is.
    X = load_wine().data[:, :3]
    estimator = sm.DensityEstimator("none", base=base, dequantise=True, random_state=0).fit(X[::2])
    score, step = estimator.grad_log_density, 1e-5 * X.std(0) * np.eye(3)
    rows = X[1::2]
    divergence = sum(
        (score(rows + h) - score(rows - h))[:, j] / 2 / h[j] for j, h in enumerate(step)
    )
    wanted = (divergence + 0.5 * (score(rows) ** 2).sum(1)).mean()
    assert compare(estimator, estimator, rows).a.mean == pytest.approx(wanted, rel=1e-4)


def test_columns_set_aside_count_nothing():
    """The error was one about the shape of the points."""
    X = points(60).numpy()
    wide = np.hstack([X, np.ones((60, 1)), X.sum(1, keepdims=True)])
    with pytest.warns(UserWarning, match="set aside"):
        found = sm.DensityEstimator("none", base="gaussian", random_state=0).fit(wide)
    plain = sm.DensityEstimator("none", base="gaussian", random_state=0).fit(X)
    wanted = score_matching_losses(plain._field(), points(60)).mean().item()
    assert compare(found, found, wide).a.mean == pytest.approx(wanted)


def test_the_same_model_twice():
    same = compare(NARROW, NARROW.score, points(30))
    assert same.difference.mean == pytest.approx(0, abs=ROUTES)
    assert compare(NARROW, NARROW, points(30)).p_value == 1.0


def test_verdicts():
    estimates = {"a": Estimate(0.0, 1.0, 9), "b": Estimate(0.0, 1.0, 9)}
    for mean, wanted in ((-3.0, "a"), (3.0, "b"), (1.0, None)):
        found = Comparison(Estimate(mean, 1.0, 9), **estimates)
        assert found.better == wanted
        assert found.p_value == pytest.approx(math.erfc(abs(mean) / 2**0.5))
    assert str(found).startswith("undecided: loss a - b = 1.0 +- 1.0 (n=9), p = 0.3")


def test_level_and_direction():
    """Two models that are equally far from the data differ at 5% in one data set of twenty."""
    left, right = (lambda x: -0.5 - x), (lambda x: 0.5 - x)
    found = [compare(left, right, points(60, s)).better is not None for s in range(800)]
    assert_mean(torch.tensor(found, dtype=F64), 0.05, detect=0.08)


def test_random_objectives_share_their_directions():
    """With the same directions, models that differ by a constant score differ by no curvature."""
    x = points(30)
    objective = sm.SlicedScoreMatchingVR(projection=sm.Gaussian())
    generator = torch.Generator().manual_seed(0)
    found = compare(lambda x: -x, lambda x: 1 - x, x, objective, generator=generator)
    wanted = (0.5 * x.square().sum(1) - 0.5 * (1 - x).square().sum(1)).mean().item()
    assert found.difference.mean == pytest.approx(wanted, rel=ROUTES)


class Foreign(BaseEstimator):
    def grad_log_density(self, X):
        return -np.asarray(X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: compare(Foreign(), NARROW, x), TypeError, "whose score can be differentiated"),
        (lambda x: compare(-x, NARROW, x), TypeError, "got Tensor"),
        (lambda x: compare(NARROW, NARROW, x[:1]), ValueError, "two points or more"),
        (lambda x: compare(NARROW, NARROW, x, level=2), ValueError, "level must lie"),
        (lambda x: compare(NARROW, NARROW, x / 0), ValueError, "X must be finite"),
        (
            lambda x: compare(NARROW, torch.sqrt, torch.cat([x.abs(), -x.abs()])),
            ValueError,
            "b must have a finite loss at every point, got NaN or infinity at 5 of 10",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(points(5))


def test_an_unknown_difference_has_no_verdict():
    unknown = Estimate(math.nan, math.nan, 10)
    assert Comparison(unknown, unknown, unknown).better is None

"""The kernel Stein discrepancy and its tests, against loops, quadrature and their level."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching import LogDensityField, VectorField
from scorematching.distributions import Gaussian, GaussianMixture
from scorematching.evaluation import (
    Fitted,
    Fixed,
    Split,
    kernel_stein_discrepancy,
    ksd_test,
)
from scorematching.evaluation.ksd import stein_kernel, testing
from scorematching.evaluation.ksd.stein_kernel import SteinKernel
from scorematching.evaluation.scores import scores_at
from scorematching.kernels import fit_stein
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

F64 = torch.float64
MODEL = GaussianMixture(
    weights=torch.tensor([0.3, 0.7], dtype=F64),
    means=torch.tensor([[-1.0, 0.5], [1.0, 0.0]], dtype=F64),
    covariances=torch.tensor([0.5, 1.5], dtype=F64),
)


def draw(n: int, dim: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=F64)


# The kernel.


def scalar_kernel(name: str, h: float):
    def rbf(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-(x - y).square().sum() / (2 * h**2))

    def imq(x: Tensor, y: Tensor) -> Tensor:
        return (1 + (x - y).square().sum() / h**2) ** -0.5

    return {"rbf": rbf, "imq": imq}[name]


def slow_stein(score, k, x: Tensor, y: Tensor) -> Tensor:
    """The definition at one pair of points, every derivative by autograd."""
    sx, sy = score(x[None])[0], score(y[None])[0]
    kx, ky = torch.func.grad(k, 0)(x, y), torch.func.grad(k, 1)(x, y)
    mixed = torch.func.jacrev(torch.func.grad(k, 0), 1)(x, y)
    return (sx @ sy) * k(x, y) + sx @ ky + sy @ kx + mixed.trace()


@pytest.mark.parametrize("name", ["rbf", "imq"])
def test_matrix_is_the_double_loop(name, generator):
    x, k = MODEL.sample(7, generator), scalar_kernel(name, 0.8)
    wanted = torch.stack([torch.stack([slow_stein(MODEL.score, k, a, b) for b in x]) for a in x])
    stein = SteinKernel.of(MODEL, x, name, 0.8)
    torch.testing.assert_close(stein.matrix(), wanted, rtol=IDENTITY, atol=IDENTITY)
    torch.testing.assert_close(stein.diagonal(), wanted.diagonal(), rtol=IDENTITY, atol=IDENTITY)


def nodes() -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes and weights of the standard normal."""
    x, w = np.polynomial.hermite_e.hermegauss(80)
    return torch.as_tensor(x)[:, None], torch.as_tensor(w / w.sum())


@pytest.mark.parametrize("name", ["rbf", "imq"])
def test_mean_over_the_model_is_zero(name):
    x, w = nodes()
    y = torch.tensor([[-2.0], [0.3], [1.7]], dtype=F64)
    u = SteinKernel.of(lambda x: -x, torch.cat([x, y]), name, 2.0).matrix()
    assert (w @ u[:80, 80:]).abs().max() < 1e-6
    wrong = SteinKernel.of(lambda x: 0.1 - x, torch.cat([x, y]), name, 2.0).matrix()
    assert (w @ wrong[:80, 80:]).abs().max() > 1e-3


def test_u_statistic_is_unbiased():
    """Its mean over data sets is the double integral."""
    x, w = nodes()
    u = SteinKernel.of(lambda x: 0.5 - x, x, "imq", 1.0).matrix()
    truth = (w @ u @ w).item()
    found = [
        kernel_stein_discrepancy(lambda x: 0.5 - x, draw(10, 1, seed), bandwidth=1.0)
        for seed in range(4000)
    ]
    assert_mean(torch.tensor(found), truth, detect=0.2 * truth)


def test_two_statistics(generator):
    x = MODEL.sample(9, generator)
    u = SteinKernel.of(MODEL, x, "rbf", 1.0).matrix()
    off = u - u.diagonal().diag()
    found = [kernel_stein_discrepancy(MODEL, x, "rbf", 1.0, statistic) for statistic in "uv"]
    assert found == pytest.approx([off.sum().item() / 72, u.mean().item()], rel=ROUTES)
    assert found[1] >= 0


def test_chunks_do_not_change_the_result(monkeypatch, generator):
    x = MODEL.sample(23, generator)
    stein = SteinKernel.of(MODEL, x)
    weights = torch.randn(4, 23, generator=generator, dtype=F64)
    wanted = torch.einsum("bi,ij,bj->b", weights, stein.matrix(), weights)
    for entries in (2**21, 100, 1):
        monkeypatch.setattr(stein_kernel, "_MAX_ENTRIES", entries)
        torch.testing.assert_close(stein.quadratic_forms(weights), wanted, rtol=1e-10, atol=1e-10)


def test_blocks_are_small_however_many_points(monkeypatch):
    """What 20,000 points need is decided by the largest block, not by N^2."""
    monkeypatch.setattr(stein_kernel, "_MAX_ENTRIES", 5000)
    sizes = []
    block = SteinKernel.block

    def recorded(self, rows, columns):
        found = block(self, rows, columns)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(SteinKernel, "block", recorded)
    kernel_stein_discrepancy(lambda x: -x, draw(400))
    assert max(sizes) <= 5000 and sum(sizes) >= 400 * 401 / 2


def test_events_of_any_shape():
    x = draw(6, 12).reshape(6, 3, 2, 2)
    flat = kernel_stein_discrepancy(lambda x: -x, x.flatten(1))
    assert kernel_stein_discrepancy(lambda x: -x, x) == pytest.approx(flat, rel=IDENTITY)


# What has a score.


def test_anything_with_a_score(generator):
    x = MODEL.sample(5, generator)
    estimator = SimpleNamespace(grad_log_density=lambda X: MODEL.score(torch.as_tensor(X)).numpy())
    fit = SimpleNamespace(
        cov_params=lambda: None, predict=lambda X, which: {"score": MODEL.score(X).numpy()}[which]
    )
    wanted = MODEL.score(x)
    given = {
        "result of a fit": fit,
        "distribution": MODEL,
        "log-density": lambda x: MODEL.log_density(x),
        "field": LogDensityField(MODEL),
        "score": MODEL.score,
        "score network": VectorField(MODEL.score),
        "estimator": estimator,
        "numbers": wanted,
    }
    for name, model in given.items():
        torch.testing.assert_close(scores_at(model, x), wanted, rtol=ROUTES, atol=ROUTES, msg=name)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (3, TypeError, "the model must be a Field"),
        (lambda x: x.sum(), ValueError, r"log-densities \(5,\) or scores \(5, 2\)"),
        (lambda x: None, ValueError, "got NoneType"),
        (lambda x: x / 0, ValueError, "scores must be finite, got NaN or infinity at 5 of 5"),
        (torch.zeros(4, 2), ValueError, "the scores must have the shape of x"),
    ],
)
def test_bad_models(model, error, message):
    with pytest.raises(error, match=message):
        kernel_stein_discrepancy(model, draw(5))


# Tests.


def test_signed_sums_are_the_loop(monkeypatch, generator):
    """All statistics of a wild bootstrap, one pair of points at a time."""
    x = MODEL.sample(8, generator)
    u = SteinKernel.of(MODEL, x).matrix()
    signs = testing._signs((5, 8), 0.5, x, torch.Generator().manual_seed(3))
    outcome = ksd_test(Fixed(MODEL), x, num_bootstrap=5, generator=torch.Generator().manual_seed(3))
    wanted = [
        sum(float(w[i] * w[j] * u[i, j]) for i in range(8) for j in range(8) if i != j) / 56
        for w in [torch.ones(8), *signs]
    ]
    assert [outcome.statistic, *outcome.null.tolist()] == pytest.approx(wanted, rel=1e-9)
    larger = sum(value >= wanted[0] for value in wanted)
    assert outcome.p_value == larger / 6


def test_signs_of_a_chain():
    """Products of neighbours have mean ``1 - 2 flip``, of points two apart its square."""
    x = draw(2)
    signs = testing._signs((4000, 6), 0.2, x, torch.Generator().manual_seed(0)).double()
    assert_mean(signs[:, 0], 0.0, detect=0.2)
    assert_mean(signs[:, 3] * signs[:, 4], 0.6, detect=0.11)
    assert_mean(signs[:, 3] * signs[:, 5], 0.36, detect=0.13)


def p_values(make, datasets: int, n: int = 40, num_bootstrap: int = 99, shift=0.0) -> Tensor:
    g = torch.Generator().manual_seed(7)
    found = []
    for _ in range(datasets):
        x = shift + torch.randn(n, 2, generator=g, dtype=F64)
        found.append(ksd_test(make(x), x, num_bootstrap=num_bootstrap, generator=g).p_value)
    return torch.tensor(found, dtype=F64)


def fit_gaussian(x: Tensor) -> Gaussian:
    return Gaussian(x.mean(0), x.T.cov())


FAMILY = Fitted(fit_gaussian, lambda model, n, generator: model.sample(n, generator))


def test_level_of_the_wild_bootstrap():
    """Uniform p-values on null data: mean 0.5 (0.505 with 99 draws), 5% at most 0.05."""
    found = p_values(lambda x: Fixed(lambda y: -y), 800)
    assert_mean(found, 0.505, detect=0.09)
    assert_mean((found <= 0.05).double(), 0.05, detect=0.08)


def test_level_of_the_parametric_bootstrap():
    """Exact where only a location is fitted: the residuals do not depend on it."""
    unit = torch.eye(2, dtype=F64)
    family = Fitted(lambda x: Gaussian(x.mean(0), unit), FAMILY.sample)
    found = p_values(lambda x: family, 200, n=20, num_bootstrap=19)
    assert_mean(found, 0.525, detect=0.18)


def test_wild_bootstrap_of_a_fitted_model_has_the_wrong_level():
    """What `Fixed` refuses where it can see it: on 300 null data sets it never rejects."""
    found = p_values(lambda x: Fixed(fit_gaussian(x)), 300)
    with pytest.raises(AssertionError, match="more than the"):
        assert_mean(found, 0.505, detect=0.2)
    assert found.mean() > 0.8


def test_power():
    """A mean half a standard deviation off is found in most of 50 data sets of 100 points."""
    assert (p_values(lambda x: Fixed(lambda y: -y), 50, n=100, shift=0.5) <= 0.05).sum() > 40
    g = torch.Generator().manual_seed(1)
    x = GaussianMixture([0.5, 0.5], [[-3.0, 0.0], [3.0, 0.0]], 1.0).to(dtype=F64).sample(100, g)
    assert ksd_test(FAMILY, x, num_bootstrap=39, generator=g).p_value == 1 / 40


def test_split_tests_points_that_were_not_fitted():
    x, seen = draw(50), []

    def fit(x: Tensor):
        seen.append(x)
        return fit_gaussian(x)

    outcome = ksd_test(Split(fit, 0.3), x, generator=torch.Generator().manual_seed(0))
    assert (len(seen), len(seen[0]), outcome.count) == (1, 35, 15)
    held_out = x[(x[:, None] != seen[0]).any(-1).all(1)]
    assert outcome.statistic == pytest.approx(
        kernel_stein_discrepancy(fit_gaussian(seen[0]), held_out), rel=1e-9
    )


def test_estimators_by_convention():
    """Every fit is a clone's, and the seeds of the samples differ."""
    estimator = sm.DensityEstimator(model="nice", max_steps=3, random_state=0)
    x = draw(60).float()
    outcome = ksd_test(Fitted.estimator(estimator), x, num_bootstrap=2)
    assert not hasattr(estimator, "model_")
    assert outcome.null[0] != outcome.null[1] and outcome.method == "parametric bootstrap"


def test_generator_decides():
    x = draw(30)

    def run(seed: int) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        return ksd_test(Fixed(lambda y: -y), x, num_bootstrap=9, generator=g).null

    assert torch.equal(run(0), run(0)) and not torch.equal(run(0), run(1))


# Refusals.


def fitted_models():
    x = draw(30)
    estimator = sm.SteinScoreEstimator().fit(x.numpy())
    return {
        "estimator": estimator,
        "method": estimator.grad_log_density,
        "kernel estimate": fit_stein(x),
        "score of a kernel estimate": fit_stein(x).score,
        "field": VectorField(fit_stein(x).score),
        "result of a fit": SimpleNamespace(cov_params=lambda: None),
    }


@pytest.mark.parametrize("name", fitted_models())
def test_fitted_models_are_refused_for_the_wild_bootstrap(name):
    model = fitted_models()[name]
    with pytest.raises(TypeError, match="wild bootstrap p-value is not valid on the points"):
        Fixed(model)
    assert Fixed(model, held_out=True).model is model


def test_unfitted_models_are_not_refused():
    for model in (MODEL, lambda x: -x, LogDensityField(MODEL), torch.nn.Linear(2, 2), draw(5)):
        Fixed(model)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ksd_test(MODEL, x), TypeError, r"must be Fixed\(model\), Fitted"),
        (lambda x: ksd_test(Fixed(MODEL), x.numpy()), TypeError, "x must be a torch.Tensor"),
        (lambda x: ksd_test(Fixed(MODEL), x[:1]), ValueError, "two points or more"),
        (lambda x: ksd_test(Fixed(MODEL), x, kernel="cubic"), ValueError, "kernel must be"),
        (lambda x: ksd_test(Fixed(MODEL), x, num_bootstrap=0), ValueError, "num_bootstrap"),
        (lambda x: ksd_test(Fixed(MODEL), x, flip_probability=0.7), ValueError, "flip_prob"),
        (lambda x: ksd_test(Split(fit_gaussian, 0.01), x), ValueError, "test_fraction must leave"),
        (lambda x: Split(fit_gaussian, 1.0), ValueError, "test_fraction must lie"),
        (lambda x: Fitted(None, None), TypeError, "fit must be a function"),
        (lambda x: Fixed(MODEL, held_out=1), TypeError, "held_out must be True or False"),
        (
            lambda x: ksd_test(Fitted(fit_gaussian, lambda m, n, g: x[:3]), x),
            ValueError,
            r"sample must return points of the shape of x, \(20, 2\), got \(3, 2\)",
        ),
        (lambda x: Fitted.estimator(3), TypeError, "must have a method fit, as .* got int"),
        (
            lambda x: Fitted.estimator(sm.inference.GraphicalModel()),
            TypeError,
            r"estimator must have a method sample, .* got GraphicalModel; write the two functions",
        ),
        (
            lambda x: kernel_stein_discrepancy(MODEL, x, statistic="w"),
            ValueError,
            'statistic must be "u" or "v"',
        ),
        (
            lambda x: kernel_stein_discrepancy(MODEL, x[:1], bandwidth=1.0),
            ValueError,
            "two points or more, got 1",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(draw(20))


@pytest.mark.parametrize("column", ["constant", "sum"])
def test_columns_set_aside_are_refused(column: str) -> None:
    """A right model was rejected with p = 0.002, and means over it had wrong errors."""
    x = draw(60).double()
    other = torch.ones_like(x[:, :1]) if column == "constant" else x.sum(1, keepdim=True)
    wide = torch.cat([x, other], 1)
    with pytest.warns(UserWarning, match="set aside"):
        estimator = sm.DensityEstimator("none", base="gaussian").fit(wide.numpy())
    for ask in (
        lambda: ksd_test(Fixed(estimator, held_out=True), wide),
        lambda: kernel_stein_discrepancy(estimator, wide),
        lambda: sm.evaluation.control_variate(lambda x: x[:, 0], wide, estimator),
        lambda: sm.evaluation.stein_thin(wide, estimator, 3),
    ):
        with pytest.raises(ValueError, match=r"density in all columns, got Density.* columns 2 as"):
            ask()

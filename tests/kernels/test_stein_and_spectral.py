"""Stein and spectral estimates against double loops, in and out of the sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scorematching import VectorField
from scorematching.evaluation import score_matching_losses
from scorematching.kernels import (
    fit_kernel_exp_family,
    fit_nu_method,
    fit_spectral,
    fit_stein,
)
from tests.kernels import oracles
from tests.tolerances import IDENTITY, ROUTES

ORACLE = 1e-8
"""Two linear solvers on matrices with condition numbers up to 1e5."""

CASES = [
    (num, dim, kernel, h)
    for num, dim, h in [(5, 1, 0.5), (12, 2, 1.0), (30, 3, None), (25, 6, 2.5)]
    for kernel in ("rbf", "imq")
]


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def close(found, wanted, tolerance):
    wanted = torch.as_tensor(wanted)
    assert ((found - wanted).abs().max() / wanted.abs().max()).item() < tolerance


@pytest.mark.parametrize(("num", "dim", "kernel", "h"), CASES)
@pytest.mark.parametrize("eta", [1e-3, 0.1])
def test_stein_is_the_double_loop(num, dim, kernel, h, eta):
    x, q = points(num, dim), points(4, dim, seed=1)
    width = oracles.median_distance(x.numpy()) if h is None else h
    wanted = oracles.stein(x.numpy(), kernel, width, eta)
    fitted = fit_stein(x, kernel=kernel, bandwidth=h, eta=eta)
    close(fitted.at_samples(), wanted, ORACLE)
    wanted = oracles.stein_at(x.numpy(), q.numpy(), kernel, width, eta)
    close(fitted.score(q), wanted, ORACLE)


@pytest.mark.parametrize(("num", "dim", "kernel", "h"), CASES)
@pytest.mark.parametrize("count", [1, 4, None])
def test_spectral_is_the_double_loop(num, dim, kernel, h, count):
    x, q = points(num, dim), points(4, dim, seed=1)
    width = oracles.median_distance(x.numpy()) if h is None else h
    k, _ = oracles.KERNELS[kernel]
    matrix = np.array([[k(a, b, width) for b in x.numpy()] for a in x.numpy()])
    J = count or oracles.num_eigen(np.linalg.eigvalsh(matrix), 0.99)
    fitted = fit_spectral(x, kernel=kernel, bandwidth=h, num_eigen=count)
    assert fitted.num_eigen.item() == J
    close(fitted.at_samples(), oracles.spectral(x.numpy(), x.numpy(), kernel, width, J), ORACLE)
    close(fitted.score(q), oracles.spectral(x.numpy(), q.numpy(), kernel, width, J), ORACLE)


def test_the_oracles_can_tell():
    """Common mistakes are far outside the tolerance."""
    x = points(12, 2)
    wanted = oracles.stein(x.numpy(), "rbf", 1.0, 1e-3)
    slips = {
        "sign": -fit_stein(x, bandwidth=1.0).at_samples(),
        "a bandwidth without its two": fit_stein(x, bandwidth=2**-0.5).at_samples(),
        "no ridge": fit_stein(x, bandwidth=1.0, eta=1e-6).at_samples(),
        "another kernel": fit_stein(x, bandwidth=1.0, kernel="imq").at_samples(),
        "one point off": fit_stein(torch.cat([x[:-1], x[-1:] + 1e-3]), bandwidth=1.0).at_samples(),
    }
    for found in slips.values():
        with pytest.raises(AssertionError):
            close(found, wanted, ORACLE)
    wanted = oracles.spectral(x.numpy(), x.numpy(), "rbf", 1.0, 5)
    for found in (
        fit_spectral(x, bandwidth=1.0, num_eigen=6).at_samples(),
        2 * fit_spectral(x, bandwidth=1.0, num_eigen=5).at_samples(),
    ):
        with pytest.raises(AssertionError):
            close(found, wanted, ORACLE)


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral])
@pytest.mark.parametrize("kernel", ["rbf", "imq"])
def test_sets_are_independent(fit, kernel):
    """Batched over two axes equals one set at a time, also where sets differ in scale."""
    x, q = points(2, 3, 15, 2), points(2, 3, 4, 2, seed=1)
    x = x * points(2, 3, 1, 1, seed=2).exp()
    batched = fit(x, kernel=kernel)
    for i in range(2):
        for j in range(3):
            alone = fit(x[i, j], kernel=kernel)
            close(batched.at_samples()[i, j], alone.at_samples(), ROUTES)
            close(batched.score(q)[i, j], alone.score(q[i, j]), ROUTES)


def test_each_set_has_its_own_number_of_eigenpairs():
    """A narrow and a wide set with one bandwidth; `average_mass` averages them."""
    x = torch.stack([0.3 * points(20, 2), 5 * points(20, 2, seed=1)])
    own = fit_spectral(x, bandwidth=1.0).num_eigen.tolist()
    assert own[0] < own[1]
    assert own == [fit_spectral(s, bandwidth=1.0).num_eigen.item() for s in x]
    shared = fit_spectral(x, bandwidth=1.0, average_mass=True)
    mean = shared.eigenvalues.mean(0).tolist()
    assert shared.num_eigen.tolist() == 2 * [oracles.num_eigen(mean, 0.99)]


def test_the_number_of_eigenpairs_is_found_anew():
    """It does not stay that of the first call."""
    narrow, wide = 0.3 * points(20, 2), 5 * points(20, 2)
    before = fit_spectral(wide, bandwidth=1.0).num_eigen
    fit_spectral(narrow, bandwidth=1.0)
    assert fit_spectral(wide, bandwidth=1.0).num_eigen == before
    assert fit_spectral(narrow, bandwidth=1.0).num_eigen != before


def test_one_eigenpair_at_least():
    """If the first eigenvalue alone exceeds the share, exactly one is kept."""
    x = 1e-2 * points(10, 2)
    assert fit_spectral(x, bandwidth=1.0).num_eigen.item() == 1
    wanted = oracles.spectral(x.numpy(), x.numpy(), "rbf", 1.0, 1)
    close(fit_spectral(x, bandwidth=1.0).at_samples(), wanted, ORACLE)


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral])
def test_released_bandwidth(fit):
    x = points(2, 8, 2)
    found = fit(x, include_diagonal=True).kernel.bandwidth
    wanted = [oracles.median_distance(s.numpy(), include_diagonal=True) for s in x]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=ROUTES)


@pytest.mark.parametrize(
    "fit",
    [
        fit_stein,
        fit_nu_method,
        fit_kernel_exp_family,
        lambda x: fit_spectral(x, mass=1 - 1e-7),  # was refused: below rounding of single precision
        lambda x: fit_kernel_exp_family(x, inducing=x[::10], lam=1e-4),
    ],
)
def test_single_precision_is_that_of_the_samples_alone(fit):
    """Fits are in double precision: that of 400 samples in single precision was off by 3 %."""
    x, q = points(400, 1).float(), points(5, 1, seed=1).float() + 1
    single, double = fit(x), fit(x.double())
    assert single.score(q).dtype == single.at_samples().dtype == torch.float32
    close(single.at_samples(), double.at_samples(), 1e-6)
    close(single.score(q), double.score(q.double()), 1e-6)


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral])
def test_moves_and_scales_with_the_data(fit):
    """``score of c x + b is score of x over c``, since the bandwidth follows."""
    x, q = points(20, 3), points(5, 3, seed=1)
    wanted = fit(x).score(q)
    close(fit(4 * x - 7).score(4 * q - 7) * 4, wanted, 1e-7)
    turn, _ = torch.linalg.qr(points(3, 3, seed=2))
    close(fit(x @ turn).score(q @ turn), wanted @ turn, 1e-7)


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral])
def test_chunks_do_not_change_the_answer(fit):
    fitted, q = fit(points(2, 10, 2)), points(2, 7, 2, seed=1)
    for size in (1, 3, 7):
        close(fitted.score(q, chunk_size=size), fitted.score(q), IDENTITY)


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral])
def test_scores_can_be_differentiated(fit):
    """The exact score-matching loss, by differences of the score."""
    fitted, q, step = fit(points(20, 2)), points(4, 2, seed=1), 1e-5
    divergence = sum(
        (fitted.score(q + step * e) - fitted.score(q - step * e))[:, i] / (2 * step)
        for i, e in enumerate(torch.eye(2).double())
    )
    wanted = divergence + 0.5 * fitted.score(q).square().sum(-1)
    close(score_matching_losses(VectorField(fitted.score), q), wanted, 1e-6)


def test_samples_keep_what_they_are():
    x = points(10, 2).requires_grad_()
    before = x.detach().clone()
    found = fit_stein(x).at_samples() + fit_spectral(x).at_samples()
    assert torch.equal(x, before)
    assert x.grad is None
    assert found.requires_grad


BAD_SAMPLES = [
    (torch.zeros(5, dtype=torch.int64), {}, TypeError, "floating-point torch.Tensor, got torch"),
    ([[0.0, 1.0]], {}, TypeError, "samples must be a floating-point torch.Tensor, got list"),
    (points(3), {}, ValueError, r"shape \(\*B, M, D\) with M >= 2, got \(3,\)"),
    (points(1, 2), {}, ValueError, r"with M >= 2, got \(1, 2\); a score is estimated from several"),
    (points(3, 2) / 0, {}, ValueError, "finite, got NaN or infinity in 3 points; drop them"),
    (torch.ones(4, 2), {}, ValueError, "samples must differ for a median bandwidth"),
    (points(4, 2), {"bandwidth": -1.0}, ValueError, r"bandwidth must be positive, got -1\.0"),
    (points(4, 2), {"kernel": "box"}, ValueError, 'kernel must be "rbf" or "imq", got \'box\''),
]


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral])
@pytest.mark.parametrize(("samples", "arguments", "error", "message"), BAD_SAMPLES)
def test_bad_samples(fit, samples, arguments, error, message):
    with pytest.raises(error, match=message):
        fit(samples, **arguments)


BAD_POINTS = [
    (points(4, 2), {"x": points(3, 3)}, ValueError, r"x must have shape \(N, 2\)"),
    (points(2, 4, 2), {"x": points(3, 2)}, ValueError, r"shape \(2, N, 2\)"),
    (points(4, 2), {"x": points(3, 2).float()}, TypeError, "a tensor like samples"),
    (points(4, 2), {"x": [[0.0, 1.0]]}, TypeError, "got list"),
    (points(4, 2), {"x": points(3, 2), "chunk_size": 0}, ValueError, "chunk_size must be at"),
]


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral, fit_kernel_exp_family])
@pytest.mark.parametrize(("samples", "arguments", "error", "message"), BAD_POINTS)
def test_bad_points(fit, samples, arguments, error, message):
    with pytest.raises(error, match=message):
        fit(samples).score(**arguments)


def test_a_singular_kernel_matrix_is_refused():
    """Every sample twice; a ridge, or fewer eigenpairs, helps."""
    x = points(5, 2).repeat(2, 1)
    with pytest.raises(ValueError, match=r"eta must be large enough .* got 0\.0 in 1 sets"):
        fit_stein(x, eta=0.0)
    assert fit_stein(x, eta=1e-3).at_samples().isfinite().all()
    with pytest.raises(ValueError, match="num_eigen must be at most 5, the rank of the kernel"):
        fit_spectral(x, num_eigen=6)
    assert fit_spectral(x, num_eigen=5).at_samples().isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_eigen": 0}, ValueError, "num_eigen must be at least 1"),
        ({"num_eigen": 2.5}, TypeError, "num_eigen must be an integer"),
        ({"num_eigen": 9}, ValueError, "at most the number of samples, 8, got 9"),
        ({"mass": 0.0}, ValueError, "mass must lie between 0 and 1"),
        ({"average_mass": "yes"}, TypeError, "average_mass must be True or False"),
    ],
)
def test_bad_choice_of_eigenpairs(arguments, error, message):
    with pytest.raises(error, match=message):
        fit_spectral(points(8, 2), **arguments)


@pytest.mark.parametrize("eta", [-1e-3, float("nan"), "small"])
def test_bad_ridge(eta):
    with pytest.raises(ValueError, match="eta must be a finite number, zero or larger"):
        fit_stein(points(8, 2), eta=eta)


@pytest.mark.parametrize("fit", [fit_stein, fit_spectral, fit_kernel_exp_family, fit_nu_method])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_mixed_precision_leaves_estimates_in_single_precision(fit, half):
    """Products with the inverse of a kernel matrix in bfloat16 were wrong by ten times the score.

    Samples in half precision, as layers under autocast return them, have its digits.
    """
    x, q = points(60, 3).float(), points(4, 3, seed=1).float()
    fitted = fit(x)
    with torch.autocast("cpu", half):
        mixed = fit(x)
        assert torch.equal(mixed.at_samples(), fitted.at_samples())
        assert torch.equal(mixed.score(q), fitted.score(q))
        low = fit(x.to(half)).score(q.to(half))
    assert torch.equal(low, fit(x.to(half).float()).score(q.to(half).float()))


def test_stein_without_a_ridge_has_no_score_at_its_samples():
    """It was minus infinity, a quotient of rounding errors."""
    x = torch.arange(6.0).double()[:, None]
    fitted = fit_stein(x, bandwidth=1.0, eta=0.0)
    assert fitted.at_samples().isfinite().all() and fitted.score(x + 0.5).isfinite().all()
    with pytest.raises(ValueError, match=r"eta must be larger .* got 0.0 and 6 of them"):
        fitted.score(x)


def test_chunks_may_be_counted_by_numpy():
    fitted, x = fit_stein(torch.arange(6.0)[:, None]), torch.ones(5, 1)
    assert torch.equal(fitted.score(x, chunk_size=np.int64(2)), fitted.score(x, chunk_size=2))

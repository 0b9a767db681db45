"""Kernel exponential families: against the naive minimum of their loss, and against theory."""

from __future__ import annotations

import pytest
import torch
from scipy.special import eval_jacobi

from scorematching import LogDensityField, VectorField
from scorematching.evaluation import score_matching_loss, score_matching_losses
from scorematching.kernels import fit_kernel_exp_family, fit_nu_method
from scorematching.kernels.exp_family import Drift
from scorematching.kernels.nu_method import nu_coefficients
from tests.kernels import oracles
from tests.tolerances import FLOAT32, IDENTITY, ROUTES


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def close(found, wanted, tolerance):
    wanted = torch.as_tensor(wanted)
    assert ((found - wanted).abs().max() / wanted.abs().max()).item() < tolerance


def base_of(x, scale):
    mean, variance = x.mean(0), x.var(0)
    return lambda y: torch.zeros_like(y) if scale is None else (mean - y) / (scale**2 * variance)


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
@pytest.mark.parametrize(("num", "dim", "scale"), [(3, 1, None), (3, 2, 2.0), (4, 2, 0.7)])
def test_full_solution_is_the_naive_minimum(kernel, num, dim, scale):
    x, q, h, lam = points(num, dim), points(3, dim, seed=1), 1.3, 0.05
    fitted = fit_kernel_exp_family(x, kernel=kernel, bandwidth=h, lam=lam, base_scale=scale)
    found = fitted.score(q)
    base = base_of(x, scale)
    close(found, oracles.kernel_exp_family(x, q, kernel, h, lam / h**2, base), 1e-6)
    other = oracles.kernel_exp_family(x, q, kernel, h, 1.1 * lam / h**2, base)
    with pytest.raises(AssertionError):  # a penalty that is off by a tenth fails
        close(found, other, 1e-3)


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
@pytest.mark.parametrize("scale", [None, 2.0])
def test_all_points_as_inducing_points_are_the_full_solution(kernel, scale):
    x, q = points(2, 12, 2), points(2, 5, 2, seed=1)
    arguments = {"kernel": kernel, "base_scale": scale}
    full = fit_kernel_exp_family(x, **arguments)
    some = fit_kernel_exp_family(x, inducing=x, **arguments)
    close(some.score(q), full.score(q), 1e-6)
    close(some.log_density(q), full.log_density(q), 1e-6)


def test_nystrom_is_the_minimum_over_its_span():
    """No step along xi, or along a derivative at an inducing point, lowers the penalised loss."""
    x, lam = points(30, 2), 0.05
    fitted = fit_kernel_exp_family(x, bandwidth=1.5, lam=lam, inducing=x[:4])
    k, z = fitted.kernel, fitted.points
    xi = Drift(x, k, fitted.base)

    def penalised(a, c):
        """Loss at the samples, and the norm of ``-a xi + sum c_b k_b`` written out."""
        s = fitted.base.score(x) - a * xi.gradient(x) + k.mixed_sum(x, z, c)
        h = 1e-4
        divergence = sum(
            (field(x + h * e, a, c) - field(x - h * e, a, c))[:, i] / (2 * h)
            for i, e in enumerate(torch.eye(2).double())
        )
        norm = a**2 * xi.norm_square() - 2 * a * (c * xi.gradient(z)).sum()
        norm = norm + (c * k.mixed_sum(z, z, c)).sum()
        return (0.5 * s.square().sum(-1) + divergence).mean() + lam / 1.5**2 / 2 * norm

    def field(y, a, c):
        return fitted.base.score(y) - a * xi.gradient(y) + k.mixed_sum(y, z, c)

    a, c = fitted.scale, fitted.coefficients
    least = penalised(a, c)
    for step in (0.01, -0.01):
        assert penalised(a * (1 + step), c) > least
        for b in range(4):
            for j in range(2):
                moved = c.clone()
                moved[b, j] += step * c.abs().max()
                assert penalised(a, moved) > least


@pytest.mark.parametrize(
    "bad", ["finite, got NaN or infinity in 2", "at least one point, got none"]
)
def test_inducing_points_are_checked(bad):
    """They ended in an error of LAPACK."""
    z = torch.full((2, 1), torch.nan) if "NaN" in bad else torch.ones(0, 1)
    with pytest.raises(ValueError, match=f"inducing must .*{bad}"):
        fit_kernel_exp_family(torch.arange(6.0)[:, None], inducing=z)


def test_more_inducing_points_come_closer():
    x, q = points(60, 2), points(50, 2, seed=1)
    full = fit_kernel_exp_family(x).score(q)
    errors = [
        (fit_kernel_exp_family(x, inducing=x[:m]).score(q) - full).square().mean().item()
        for m in (3, 10, 30, 60)
    ]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-10


@pytest.mark.parametrize("fit", [fit_kernel_exp_family, fit_nu_method])
@pytest.mark.parametrize("kernel", ["rbf", "imq"])
def test_score_is_the_gradient_of_the_log_density(fit, kernel):
    fitted, q = fit(points(15, 3), kernel=kernel), points(4, 3, seed=1)
    by_autograd = LogDensityField(fitted.log_density).score_and_divergence(q)
    given = VectorField(fitted.score).score_and_divergence(q)
    for found, wanted in zip(given, by_autograd):
        close(found, wanted, ROUTES)


def test_penalty_trades_fit_for_norm():
    """The larger the penalty, the larger the loss at the samples."""
    x = points(20, 2)
    losses = [
        score_matching_losses(VectorField(fit_kernel_exp_family(x, lam=lam).score), x).mean().item()
        for lam in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    ]
    assert losses == sorted(losses)


def test_a_strong_penalty_leaves_the_base():
    x, q = points(20, 2), points(4, 2, seed=1)
    close(fit_kernel_exp_family(x, lam=1e9).score(q), base_of(x, 2.0)(q), 1e-6)


# The nu-method.


@pytest.mark.parametrize("nu", [0.5, 1.0, 2.0])
def test_residuals_are_jacobi_polynomials(nu):
    """The factor of an error with eigenvalue s after t steps, by recursion and in closed form."""
    s = torch.linspace(0, 1, 21, dtype=torch.float64)
    before, now = torch.ones_like(s), torch.ones_like(s)
    for t in range(1, 15):
        u, w = nu_coefficients(t, nu)
        before, now = now, now + u * (now - before) - w * s * now
        wanted = eval_jacobi(t, 2 * nu - 0.5, -0.5, 1 - 2 * s.numpy())
        wanted /= eval_jacobi(t, 2 * nu - 0.5, -0.5, 1.0)
        close(now, wanted, ROUTES)


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_nu_method_filters_the_spectrum(kernel, steps):
    """Scores at the samples are ``-h^2 g_t(S) grad xi``, ``g_t(s) = (1 - P_t(s)) / s``."""
    x = points(8, 2)
    fitted = fit_nu_method(x, kernel=kernel, bandwidth=1.2, num_iterations=steps)
    G = fitted.kernel.mixed(x, x).reshape(16, 16)
    S, V = torch.linalg.eigh(G * 1.2**2 / 8)
    assert S.max() <= 1 + 1e-12  # the bound on the norm that the step length relies on
    left = torch.as_tensor(
        eval_jacobi(steps, 1.5, -0.5, 1 - 2 * S.numpy()) / eval_jacobi(steps, 1.5, -0.5, 1.0)
    )
    slopes = Drift(x, fitted.kernel, fitted.base).gradient(x).reshape(-1)
    change = -(1.2**2) * V @ ((1 - left) / S.clamp(min=1e-12) * (V.T @ slopes))
    close(fitted.at_samples(), fitted.base.score(x) + change.reshape(8, 2), 1e-7)


def test_nu_method_goes_to_the_unpenalised_minimum():
    """Many steps reach the minimum without a penalty; one step does not."""
    x = points(6, 2)
    wanted = fit_kernel_exp_family(x, bandwidth=0.5, lam=1e-8).at_samples()
    errors = [
        (fit_nu_method(x, bandwidth=0.5, num_iterations=t).at_samples() - wanted).abs().max()
        for t in (1, 10, 100, 1000)
    ]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-3 * wanted.abs().max()


def test_steps_do_the_work_of_a_penalty():
    """Held-out losses of t steps and of lam = 1 / t^2 are about the same."""
    x, q = points(100, 2), points(2000, 2, seed=1)
    for t in (5, 10, 20):
        fits = fit_nu_method(x, num_iterations=t), fit_kernel_exp_family(x, lam=t**-2)
        by_steps, by_penalty = (score_matching_loss(VectorField(f.score), q).mean for f in fits)
        assert by_steps == pytest.approx(by_penalty, abs=0.1)  # the best is -1


# Both.


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
def test_sets_are_independent(kernel):
    x, q = points(2, 3, 10, 2), points(2, 3, 4, 2, seed=1)
    x = x * points(2, 3, 1, 1, seed=2).exp()
    z = x[..., :5, :]
    fits = {
        "full": (lambda x, z: fit_kernel_exp_family(x, kernel=kernel), ROUTES),
        "nystrom": (lambda x, z: fit_kernel_exp_family(x, kernel=kernel, inducing=z), 1e-6),
        "nu": (lambda x, z: fit_nu_method(x, kernel=kernel), ROUTES),
    }
    for fit, tolerance in fits.values():
        batched = fit(x, z)
        for i in range(2):
            for j in range(3):
                alone = fit(x[i, j], z[i, j])
                close(batched.score(q)[i, j], alone.score(q[i, j]), tolerance)
                close(batched.log_density(q)[i, j], alone.log_density(q[i, j]), tolerance)


@pytest.mark.parametrize("fit", [fit_kernel_exp_family, fit_nu_method])
def test_scales_with_the_data(fit):
    x, q = points(15, 2), points(5, 2, seed=1)
    wanted = fit(x).score(q)
    close(fit(4 * x - 7).score(4 * q - 7) * 4, wanted, 1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
@pytest.mark.parametrize("unit", [1e-8, 1e-2, 1e4, 1e8])
def test_inducing_points_in_any_units(kernel, unit):
    """Neither xi nor the derivatives of the kernel are lost beside the others."""
    x, q = points(40, 2), points(5, 2, seed=1)
    fitted = fit_kernel_exp_family(unit * x, kernel=kernel, inducing=unit * x[:10])
    wanted = fit_kernel_exp_family(x, kernel=kernel, inducing=x[:10]).score(q)
    close(fitted.score(unit * q) * unit, wanted, 1e-8)
    single = unit * x.float()
    fitted = fit_kernel_exp_family(single, kernel=kernel, inducing=single[:10])
    close(fitted.score(unit * q.float()).double() * unit, wanted, 0.01)


@pytest.mark.parametrize("fit", [fit_kernel_exp_family, fit_nu_method])
def test_single_precision_and_chunks(fit):
    x, q = points(15, 2), points(7, 2, seed=1)
    fitted = fit(x)
    close(fitted.score(q, chunk_size=2), fitted.score(q), IDENTITY)
    close(fitted.log_density(q, chunk_size=2), fitted.log_density(q), IDENTITY)
    close(fit(x.float()).score(q.float()).double(), fitted.score(q), 10 * FLOAT32)


def test_a_coordinate_that_does_not_vary_has_no_score():
    x = torch.cat([points(15, 1), torch.zeros(15, 1)], 1)
    found = fit_kernel_exp_family(x).at_samples()
    assert found.isfinite().all()
    assert found[:, 1].abs().max() < 1e-8


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lam": 0.0}, ValueError, r"lam must be positive, got 0\.0; 1e-2 is a good start"),
        ({"base_scale": -1.0}, ValueError, "base_scale must be positive"),
        ({"inducing": points(3, 3)}, ValueError, r"inducing must have shape \(N, 2\)"),
        ({"bandwidth": "wide"}, TypeError, "bandwidth must be a positive number"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        fit_kernel_exp_family(points(8, 2), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"num_iterations": 0}, "num_iterations must be at least 1"), ({"nu": 0.0}, "nu must be pos")],
)
def test_bad_iterations(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_nu_method(points(8, 2), **arguments)


@pytest.mark.parametrize("fit", [fit_kernel_exp_family, fit_nu_method])
def test_bad_samples(fit):
    for samples, message in [
        (points(1, 2), "M >= 2"),
        (points(4, 2) / 0, "samples must be finite"),
        (torch.ones(4, 2), "samples must differ"),
    ]:
        with pytest.raises(ValueError, match=message):
            fit(samples)

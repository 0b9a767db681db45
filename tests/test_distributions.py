"""Distributions against derivatives, integrals, independent formulas and the laws they claim."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor

from scorematching.distributions import (
    DISTRIBUTIONS,
    Banana,
    Distribution,
    Funnel,
    Gaussian,
    GaussianMixture,
    Ring,
    StudentT,
)
from tests.statistics import assert_mean
from tests.tolerances import FLOAT32, IDENTITY, ROUTES

F64 = torch.float64

# Named defaults, and variants that stress what the defaults do not: more coordinates, a ring so
# wide that a fifth of its mass is cut off, tails of every weight, a funnel with moderate moments.
CASES: dict[str, Distribution] = {
    **{name: make().to(dtype=F64) for name, make in DISTRIBUTIONS.items()},
    "banana_3": Banana(dim=3, curvature=-0.4, scale=1.2).to(dtype=F64),
    "funnel_mild": Funnel(dim=3, scale=0.5).to(dtype=F64),
    "ring_wide": Ring(radius=1.0, width=0.6, dim=4).to(dtype=F64),
    "student_t_mixed": StudentT(
        3, torch.tensor([0.7, 3.0, 40.0], dtype=F64), location=1.0, scale=0.5
    ),
    "student_t_light": StudentT(2, torch.tensor(12.0, dtype=F64), location=-1.0, scale=2.0),
}


def cases(*leave_out: str) -> pytest.MarkDecorator:
    names = [name for name in CASES if name not in leave_out]
    return pytest.mark.parametrize("p", [CASES[name] for name in names], ids=names)


def spread_points(p: Distribution, generator: torch.Generator) -> Tensor:
    """Points where the mass is and points where it is not."""
    outside = 3 * torch.randn(50, p.dim, generator=generator, dtype=p.dtype)
    return torch.cat([p.sample(50, generator), outside])


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Agreement relative to the largest entry of a row, or to 1 where that is smaller."""
    error = (actual - expected).abs().flatten(1)
    scale = expected.abs().flatten(1).amax(1, keepdim=True).clamp(min=1)
    assert (error / scale).max() <= tolerance


# Exact statements.


@cases()
def test_score_is_the_gradient_of_the_log_density(
    p: Distribution, generator: torch.Generator
) -> None:
    x = spread_points(p, generator).requires_grad_()
    (gradient,) = torch.autograd.grad(p.log_density(x).sum(), x)
    assert_close(p.score(x), gradient, IDENTITY)
    with pytest.raises(AssertionError):
        assert_close((1 + 1e-9) * p.score(x), gradient, IDENTITY)


@cases()
def test_is_its_own_log_density_model(p: Distribution, generator: torch.Generator) -> None:
    x = p.sample(5, generator)
    assert p.log_density(x).shape == (5,)
    assert p.score(x).shape == x.shape == (5, p.dim)
    assert torch.equal(p(x), p.log_density(x))
    assert p.log_z == 0.0


@pytest.mark.parametrize(
    "p, box",
    [
        (
            Gaussian(torch.tensor([1.0, -1.0], dtype=F64), [[2.0, 0.9], [0.9, 1.0]]),
            [(-14, 16), (-12, 10)],
        ),
        (CASES["mixture"], [(-12, 12), (-12, 12)]),
        (CASES["banana"], [(-13, 13), (-12, 90)]),
        (Funnel(dim=2, scale=0.5).to(dtype=F64), [(-4, 4), (-60, 60)]),
        (CASES["ring"], [(-4, 4), (-4, 4)]),
        (Ring(radius=1.0, width=0.6).to(dtype=F64), [(-5, 5), (-5, 5)]),
    ],
    ids=["gaussian", "mixture", "banana", "funnel", "ring", "ring_wide"],
)
def test_integrates_to_one(p: Distribution, box: list[tuple[float, float]]) -> None:
    # The trapezoidal rule converges faster than any power for smooth, fast-decaying functions.
    axes = [torch.linspace(low, high, 601, dtype=F64) for low, high in box]
    cell = math.prod(float(axis[1] - axis[0]) for axis in axes)
    integral = p(torch.cartesian_prod(*axes)).exp().sum() * cell
    assert abs(integral.log().item() - p.log_z) < ROUTES


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("df", [900.0, 1e3, 1e5, 1e8, 1e14])
def test_student_t_with_many_degrees_of_freedom(df: float, dtype: torch.dtype) -> None:
    """Both log Gamma are large there, and their difference is not."""
    p = StudentT(1, torch.tensor(df, dtype=dtype))
    truth = scipy.stats.norm.logpdf(0.5) if df > 1e12 else scipy.stats.t.logpdf(0.5, df)
    found = p(torch.tensor([[0.5]], dtype=dtype)).item()
    assert found == pytest.approx(truth, abs=1e-6 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("df", [0.7, 3.0, 40.0])
def test_student_t_integrates_to_one(df: float) -> None:
    p = StudentT(1, torch.tensor(df, dtype=F64), location=1.0, scale=0.5)

    def density(u: float) -> float:
        # x = sinh(u)^3 makes the integrand decay exponentially, however heavy the tail.
        x, dx = math.sinh(u) ** 3, 3 * math.sinh(u) ** 2 * math.cosh(u)
        return float(p(torch.tensor([[x]], dtype=F64)).exp()) * dx

    integral, _ = scipy.integrate.quad(density, -18, 18, epsabs=1e-11, epsrel=1e-11, limit=500)
    assert abs(math.log(integral) - p.log_z) < ROUTES


def independent_log_density(name: str, p: Distribution, x: Tensor) -> Tensor:
    """The same log-densities, from other people's building blocks."""
    normal = scipy.stats.norm.logpdf
    y = x.numpy()
    if isinstance(p, Gaussian):
        values = scipy.stats.multivariate_normal(p.mean, p.covariance).logpdf(y)
    elif isinstance(p, GaussianMixture):
        parts = zip(p.weights.tolist(), p.means, p.covariances, strict=True)
        values = np.log(sum(w * scipy.stats.multivariate_normal(m, c).pdf(y) for w, m, c in parts))
    elif isinstance(p, Banana):
        bend = p.curvature * (y[:, 0] ** 2 - p.scale**2)
        values = normal(y[:, 0], 0, p.scale) + normal(y[:, 1], bend, 1)
        values = values + normal(y[:, 2:]).sum(1)
    elif isinstance(p, Funnel):
        values = normal(y[:, 0], 0, p.scale)
        values = values + normal(y[:, 1:], 0, np.exp(y[:, :1] / 2)).sum(1)
    elif isinstance(p, Ring):
        # Density of r^2 over pi: the angle is uniform and dx1 dx2 = d(r^2) d(angle) / 2.
        spread = 2 * p.radius * p.width
        squared = scipy.stats.truncnorm(-(p.radius**2) / spread, np.inf, p.radius**2, spread)
        values = squared.logpdf((y[:, :2] ** 2).sum(1)) - math.log(math.pi)
        values = values + normal(y[:, 2:]).sum(1)
    elif isinstance(p, StudentT):
        values = scipy.stats.t.logpdf(y, p.df, p.location, p.scale).sum(1)
    else:
        raise NotImplementedError(name)
    return torch.as_tensor(values)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_an_independent_formula(name: str, generator: torch.Generator) -> None:
    p = CASES[name]
    x = p.sample(100, generator)
    assert_close(p(x)[:, None], independent_log_density(name, p, x)[:, None], ROUTES)


def test_gaussian_precision_inverts_the_covariance() -> None:
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)
    p = Gaussian(torch.zeros(2, dtype=F64), covariance)
    assert_close(p.covariance, covariance, IDENTITY)
    assert_close(p.precision @ covariance, torch.eye(2, dtype=F64), IDENTITY)


def test_mixture_accepts_every_form_of_covariance(generator: torch.Generator) -> None:
    weights, means = [0.25, 0.75], torch.tensor([[1.0, 0.0, 0.0], [0.0, -1.0, 2.0]], dtype=F64)
    full = 0.5 * torch.eye(3, dtype=F64).expand(2, 3, 3)
    x = torch.randn(20, 3, generator=generator, dtype=F64)
    expected = GaussianMixture(weights, means, full)
    for form in (0.5, [0.5, 0.5], full[0]):
        p = GaussianMixture(weights, means, form)
        assert_close(p(x)[:, None], expected(x)[:, None], IDENTITY)
        assert_close(p.score(x), expected.score(x), IDENTITY)
    assert_close(expected.covariances, full, IDENTITY)
    assert_close(expected.weights[None], torch.tensor([weights], dtype=F64), IDENTITY)


def test_mixture_of_one_is_a_gaussian(generator: torch.Generator) -> None:
    mean, covariance = torch.tensor([1.0, 2.0], dtype=F64), [[2.0, -0.5], [-0.5, 1.0]]
    x = torch.randn(20, 2, generator=generator, dtype=F64)
    mixture = GaussianMixture([1.0], mean[None], covariance)
    gaussian = Gaussian(mean, covariance)
    assert_close(mixture(x)[:, None], gaussian(x)[:, None], IDENTITY)
    assert_close(mixture.score(x), gaussian.score(x), IDENTITY)


def test_mixture_score_survives_far_from_every_component() -> None:
    # All component densities underflow here; the nearest one must still give the score.
    p = GaussianMixture([0.5, 0.5], torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=F64), 1.0)
    x = torch.tensor([[1e4, 0.0]], dtype=F64)
    assert_close(p.score(x), torch.tensor([[1 - 1e4, 0.0]], dtype=F64), IDENTITY)


# The law of the samples.


def rosenblatt(p: Distribution, x: Tensor) -> np.ndarray:
    """The map to independent uniform numbers, ``(n, D) -> (n, D)``, if x has the law of p."""
    cdf, y = scipy.stats.norm.cdf, x.numpy()
    if isinstance(p, Gaussian):
        root = np.linalg.cholesky(p.covariance.numpy())
        return cdf(np.linalg.solve(root, (y - p.mean.numpy()).T).T)
    if isinstance(p, GaussianMixture):
        return rosenblatt_mixture(p, y)
    if isinstance(p, Banana):
        z = y[:, 1] - p.curvature * (y[:, 0] ** 2 - p.scale**2)
        return cdf(np.column_stack([y[:, 0] / p.scale, z, y[:, 2:]]))
    if isinstance(p, Funnel):
        return cdf(np.column_stack([y[:, 0] / p.scale, y[:, 1:] / np.exp(y[:, :1] / 2)]))
    if isinstance(p, Ring):
        spread = 2 * p.radius * p.width
        squared = scipy.stats.truncnorm(-(p.radius**2) / spread, np.inf, p.radius**2, spread)
        angle = np.arctan2(y[:, 1], y[:, 0]) / (2 * math.pi) + 0.5
        return np.column_stack([squared.cdf((y[:, :2] ** 2).sum(1)), angle, cdf(y[:, 2:])])
    assert isinstance(p, StudentT)
    return scipy.stats.t.cdf(y, p.df, p.location, p.scale)


def rosenblatt_mixture(p: GaussianMixture, y: np.ndarray) -> np.ndarray:
    """P(x1 <= y1), then P(x2 <= y2 | x1 = y1), for a mixture in the plane."""
    w, m, c = p.weights.numpy(), p.means.numpy(), p.covariances.numpy()
    normal, sd = scipy.stats.norm, np.sqrt(c[:, 0, 0])
    first, second = y[:, :1], y[:, 1:]
    posterior = w * normal.pdf(first, m[:, 0], sd)
    posterior /= posterior.sum(1, keepdims=True)
    slope = c[:, 0, 1] / c[:, 0, 0]
    centre = m[:, 1] + slope * (first - m[:, 0])
    rest = np.sqrt(c[:, 1, 1] - slope * c[:, 0, 1])
    columns = [w * normal.cdf(first, m[:, 0], sd), posterior * normal.cdf(second, centre, rest)]
    return np.column_stack([column.sum(1) for column in columns])


def assert_uniform(u: np.ndarray, error_rate: float = 1e-6) -> None:
    """Assert that rows of ``u: (n, D)`` are uniform in each coordinate and pairwise uncorrelated.

    The empirical distribution function of n uniform numbers strays from the true one by more than
    e with probability at most ``2 exp(-2 n e^2)`` (Dvoretzky, Kiefer, Wolfowitz, Massart); over D
    coordinates, ``e = sqrt(log(2 D / error_rate) / 2n)`` has a false alarm in at most `error_rate`
    of all runs. With n = 100,000 e is 0.009, and an error of 0.02 anywhere is missed with
    probability below ``2 exp(-2 n (0.02 - e)^2)``, 1e-10.
    """
    n, dim = u.shape
    grid = np.arange(n + 1)[:, None] / n
    ordered = np.sort(u, axis=0)
    distance = np.maximum(grid[1:] - ordered, ordered - grid[:-1]).max(0)
    allowed = math.sqrt(math.log(2 * dim / error_rate) / (2 * n))
    assert (distance <= allowed).all(), f"not uniform: distances {distance}, allowed {allowed:.4f}"
    if dim > 1:
        i, j = np.triu_indices(dim, 1)
        centred = u - 0.5
        assert_mean(centred[:, i] * centred[:, j], 0.0, detect=0.03 / 12, error_rate=error_rate)


@cases()
def test_samples_have_the_law(p: Distribution, generator: torch.Generator) -> None:
    assert_uniform(rosenblatt(p, p.sample(100_000, generator)))


@pytest.mark.parametrize(
    "claimed, drawn",
    [
        (Banana(curvature=0.5), Banana(curvature=0.2)),
        (Funnel(dim=3, scale=3.0), Funnel(dim=3, scale=2.8)),
        (Ring(radius=1.0, width=0.6), Ring(radius=1.0, width=0.55)),
        (StudentT(2, df=5.0), Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])),
        (
            Gaussian([0.0, 0.0], [[1.0, 0.05], [0.05, 1.0]]),
            Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]),
        ),
    ],
    ids=["banana", "funnel", "ring", "student_t", "correlation"],
)
def test_samples_of_another_law_are_rejected(
    claimed: Distribution, drawn: Distribution, generator: torch.Generator
) -> None:
    x = drawn.to(dtype=F64).sample(100_000, generator)
    with pytest.raises(AssertionError):
        assert_uniform(rosenblatt(claimed.to(dtype=F64), x))


def moments(p: Distribution) -> tuple[Tensor, Tensor]:
    """Mean ``(D,)`` and covariance ``(D, D)`` by their formulas."""
    zero, one = torch.zeros(p.dim, dtype=F64), torch.ones(p.dim, dtype=F64)
    if isinstance(p, Gaussian):
        return p.mean, p.covariance
    if isinstance(p, GaussianMixture):
        mean = p.weights @ p.means
        between = p.means - mean
        scatter = torch.einsum("k,ki,kj->ij", p.weights, between, between)
        return mean, scatter + torch.einsum("k,kij->ij", p.weights, p.covariances)
    if isinstance(p, Banana):
        one[0], one[1] = p.scale**2, 1 + 2 * p.curvature**2 * p.scale**4
    if isinstance(p, Funnel):
        one[0], one[1:] = p.scale**2, math.exp(p.scale**2 / 2)
    if isinstance(p, Ring):
        spread = 2 * p.radius * p.width
        hazard = scipy.stats.norm.pdf(p.radius**2 / spread) / scipy.stats.norm.cdf(
            p.radius**2 / spread
        )
        one[:2] = (p.radius**2 + spread * hazard) / 2
    if isinstance(p, StudentT):
        return p.location, (p.scale**2 * p.df / (p.df - 2)).diag()
    return zero, one.diag()


# Left out: laws whose fourth moments are infinite or too large for a mean of squares to settle.
@cases("funnel", "student_t", "student_t_mixed")
def test_samples_have_the_moments(p: Distribution, generator: torch.Generator) -> None:
    mean, covariance = moments(p)
    sd = covariance.diagonal().sqrt()
    y = p.sample(300_000, generator) - mean
    assert_mean(y, 0.0, detect=0.02 * sd)
    assert_mean(y[:, :, None] * y[:, None], covariance, detect=0.05 * sd.outer(sd))


def stein_terms(score: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Score ``(n, D)`` and ``s s' + grad s`` ``(n, D, D)``, whose expectations are zero."""
    x = x.detach().requires_grad_()
    s = score(x)
    rows = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in s.unbind(1)]
    s = s.detach()
    return s, s[:, :, None] * s[:, None] + torch.stack(rows, 1)


def assert_stein(score: Callable[[Tensor], Tensor], x: Tensor, detect: float) -> None:
    """Assert ``E[s] = 0`` and ``E[s s' + grad s] = 0``, seeing errors relative to ``E[s_i^2]``."""
    s, identity = stein_terms(score, x)
    scale = s.square().mean(0).sqrt()
    assert_mean(s, 0.0, detect=detect * scale)
    assert_mean(identity, 0.0, detect=detect * scale.outer(scale))


# Left out: the default funnel, whose E[s s'] is that of exp(-x1) with standard deviation 3.
@cases("funnel")
def test_score_and_samples_satisfy_steins_identity(
    p: Distribution, generator: torch.Generator
) -> None:
    assert_stein(p.score, p.sample(120_000, generator), detect=0.06)


@pytest.mark.parametrize("factor", [1.02, 0.98, -1.0])
def test_steins_identity_rejects_a_wrong_score(factor: float, generator: torch.Generator) -> None:
    p = CASES["gaussian"]
    x = p.sample(350_000, generator)
    assert_stein(p.score, x, detect=0.02)
    with pytest.raises(AssertionError, match="differs"):
        assert_stein(lambda x: factor * p.score(x), x, detect=0.02)


# Randomness, precision, and the caller's things.


@cases()
def test_generator_decides_the_samples(p: Distribution) -> None:
    def draw(seed: int) -> Tensor:
        return p.sample(50, torch.Generator().manual_seed(seed))

    before = torch.get_rng_state()
    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert torch.equal(torch.get_rng_state(), before)


@cases()
def test_without_a_generator_torchs_own_is_used(p: Distribution) -> None:
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        first, second = p.sample(5), p.sample(5)
        torch.set_rng_state(state)
        assert torch.equal(p.sample(5), first)
    assert not torch.equal(first, second)


@cases()
def test_float32_is_kept_and_agrees(p: Distribution, generator: torch.Generator) -> None:
    single = p.to(dtype=torch.float32)
    x = single.sample(200, generator)
    assert x.dtype == single(x).dtype == single.score(x).dtype == torch.float32
    assert p.dtype == F64
    assert_close(single(x)[:, None].double(), p(x.double())[:, None], FLOAT32)
    assert_close(single.score(x).double(), p.score(x.double()), FLOAT32)
    for moved in (p.to(torch.float32), p.to("cpu", torch.float32)):  # as tensors take it
        assert torch.equal(moved(x), single(x))


def test_numbers_take_the_dtype_of_the_tensors_beside_them() -> None:
    double = torch.tensor([0.1, 0.2], dtype=F64)
    assert Gaussian(double, [[0.3, 0.1], [0.1, 0.3]]).covariance.dtype == F64
    assert StudentT(2, df=3.0, location=double, scale=0.1).scale[0].item() == 0.1
    assert Gaussian(double.numpy(), np.eye(2)).dtype == F64
    assert Gaussian([0, 0], [[1, 0], [0, 1]]).dtype == torch.get_default_dtype()


def test_leaves_the_callers_tensors_alone(generator: torch.Generator) -> None:
    mean, covariance = torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64)
    p = Gaussian(mean, covariance)
    mean += 1
    covariance *= 2
    x = torch.randn(4, 2, generator=generator, dtype=F64)
    assert_close(p.score(x), -x, IDENTITY)
    assert not x.requires_grad


def test_a_wide_ring_never_leaves_the_numbers(generator: torch.Generator) -> None:
    # Nearly half of the normal law of r^2 lies below zero and must be redrawn.
    x = Ring(radius=0.01, width=5.0).sample(10_000, generator)
    assert x.isfinite().all()


def test_registry_offers_small_named_laws() -> None:
    assert set(DISTRIBUTIONS) == {"gaussian", "mixture", "banana", "funnel", "ring", "student_t"}
    for make in DISTRIBUTIONS.values():
        assert 2 <= make().dim <= 5
        assert make().dtype == torch.get_default_dtype()
    assert repr(DISTRIBUTIONS["ring"]()) == "Ring(dim=2, dtype=torch.float32)"


EYE = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Gaussian([[0.0]], [[1.0]]), r"mean must have shape \(D,\), got \(1, 1\)"),
        (lambda: Gaussian([], []), r"mean must have shape \(D,\), got \(0,\)"),
        (lambda: Gaussian([0.0], EYE), r"covariance must have shape \(1, 1\), got \(2, 2\)"),
        (lambda: Gaussian([math.nan, 0.0], EYE), "mean must be finite"),
        (lambda: Gaussian([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), "must be symmetric, .* by 0.5"),
        (lambda: Gaussian([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), "smallest eigenvalue -1"),
        (lambda: GaussianMixture([0.5, 0.4], EYE), "weights must sum to 1, got 0.9"),
        (lambda: GaussianMixture([1.5, -0.5], EYE), "weights must be positive, got -0.5"),
        (lambda: GaussianMixture([1.0], EYE), r"weights must have shape \(2,\), got \(1,\)"),
        (lambda: GaussianMixture([1.0], [0.0]), r"means must have shape \(K, D\), got \(1,\)"),
        (lambda: GaussianMixture([0.5, 0.5], EYE, -1.0), "covariances must be positive definite"),
        (
            lambda: Gaussian([0.0], 1e-310 * torch.ones(1, 1).double()),
            "covariance must have an inverse in torch.float64",
        ),
        (lambda: GaussianMixture([0.5, 0.5], EYE, [1.0] * 3), r"covariances .* \(2,\), got \(3,\)"),
        (lambda: GaussianMixture([0.5, 0.5], EYE, [[1.0]]), r"covariances .* \(2, 2\), got"),
        (lambda: GaussianMixture([0.5, 0.5], EYE, [EYE]), r"covariances .* \(2, 2, 2\), got"),
        (lambda: Banana(dim=1), "dim must be at least 2 for Banana, got 1"),
        (lambda: Banana(curvature=math.inf), "curvature must be finite, got inf"),
        (lambda: Banana(scale=0.0), "scale must be positive, got 0.0"),
        (lambda: Funnel(dim=1), "dim must be at least 2 for Funnel, got 1"),
        (lambda: Funnel(scale=-3.0), "scale must be positive, got -3.0"),
        (lambda: Ring(radius=0.0), "radius must be positive, got 0.0; .* use Gaussian"),
        (lambda: Ring(width=0.0), "width must be positive, got 0.0"),
        (lambda: Ring(dim=1), "dim must be at least 2 for Ring, got 1"),
        (lambda: StudentT(0, df=3.0), "dim must be at least 1, got 0"),
        (lambda: StudentT(2, df=0.0), "df must be positive, got 0.0; .* use Gaussian"),
        (lambda: StudentT(2, df=3.0, scale=-1.0), "scale must be positive, got -1.0"),
        (lambda: StudentT(2, df=[3.0] * 3), r"df must have shape \(2,\), got \(3,\)"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Distribution], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@cases()
def test_bad_points_are_named(p: Distribution) -> None:
    for evaluate in (p.log_density, p.score, p):
        with pytest.raises(ValueError, match=rf"x must have shape \(N, {p.dim}\), .* x\[None\]"):
            evaluate(torch.zeros(p.dim, dtype=F64))
        with pytest.raises(ValueError, match=rf"got \(3, {p.dim + 1}\)"):
            evaluate(torch.zeros(3, p.dim + 1, dtype=F64))
        with pytest.raises(TypeError, match=r"\.to\(dtype=torch.float32\)"):
            evaluate(torch.zeros(3, p.dim, dtype=torch.float32))


def test_bad_requests_are_named() -> None:
    p = DISTRIBUTIONS["gaussian"]()
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        p.sample(0)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
        p.sample(1, generator=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dtype must be floating-point, got torch\.int64"):
        p.to(dtype=torch.int64)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_exact_under_autocast(name: str) -> None:
    """Products in bfloat16 left log-densities and samples with an error of half a per cent."""
    law = DISTRIBUTIONS[name]()
    x = law.sample(5, torch.Generator().manual_seed(0))
    wanted = law(x), law.score(x), x
    with torch.autocast("cpu", torch.bfloat16):
        found = law(x), law.score(x), law.sample(5, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))

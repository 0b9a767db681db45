"""The models: their formulas, and fits to points drawn from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching._memory import Allocations
from scorematching.domains import Box, PositiveOrthant, Simplex, Sphere
from scorematching.inference import FitResult, fit, models
from scorematching.inference.models.base import Symmetric

ERROR_RATE = 1e-6
"""Of every comparison of a fit with the truth, by the chi-square statistic of all parameters."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def assert_true(result: FitResult, truth: Any) -> None:
    """Estimates within the error of their own covariance, and errors that are not huge."""
    truth = np.asarray(truth, dtype=np.float64).reshape(-1)
    off = np.asarray(result.params) - truth
    statistic = off @ np.linalg.solve(result.cov_params(), off)
    assert statistic < scipy.stats.chi2.isf(ERROR_RATE, len(truth))
    assert (np.asarray(result.bse) < 0.35 * (1 + abs(truth))).all()


# Points from the models.


def truncated_normal(n: int, mean: Tensor, precision: Tensor, box: Box) -> Tensor:
    """By rejection."""
    covariance = torch.linalg.inv(precision).numpy()
    x = tensor(rng().multivariate_normal(mean.numpy(), covariance, 40 * n))
    return x[box.depth(x) > 0][:n]


def on_circle(n: int, log_density: Callable[[Tensor], Tensor]) -> Tensor:
    """Angles by inversion on a fine grid."""
    angle = np.linspace(0, 2 * math.pi, 200_001)
    x = tensor(np.stack([np.cos(angle), np.sin(angle)], -1))
    weight = np.cumsum(log_density(x).exp().numpy())
    chosen = np.searchsorted(weight / weight[-1], rng().random(n))
    return x[chosen.clip(0, len(x) - 1)]


# Formulas, written out entry by entry at one point.


def test_formulas() -> None:
    x = tensor([[0.2, 0.3, 0.5]])
    u = tensor(rng(1).normal(size=20))

    def symmetric(entries: Tensor, d: int = 3) -> Tensor:
        m = np.zeros((d, d))
        m[np.triu_indices(d)] = entries.numpy()
        return tensor(m + np.triu(m, 1).T)

    def value(model: Any, **theta: Tensor) -> float:
        return float(torch.func.functional_call(model.double(), theta, (x,)))

    one = x[0]
    K = symmetric(u[:6])
    gaussian = value(models.Gaussian(3), linear=u[6:9], precision=u[:6])
    assert gaussian == pytest.approx(float(u[6:9] @ one - 0.5 * one @ K @ one))
    for a, b in [(1.0, 1.0), (0.5, 0.5), (0.5, 0.0), (2.0, 0.3)]:
        found = value(models.PairwiseInteraction(3, a, b), linear=u[6:9], interaction=u[:6])
        linear = one.log() if b == 0 else one**b / b
        expected = -(one**a) @ K @ one**a / (2 * a) + u[6:9] @ linear
        assert found == pytest.approx(float(expected))
    found = value(models.PairwiseInteraction(3, 0, 1), linear=u[6:9], interaction=u[:6])
    assert found == pytest.approx(float(-one.log() @ K @ one.log() / 2 + u[6:9] @ one))
    A = symmetric(u[:3], 2)
    ppi = value(models.PPI(3, linear=True), A=u[:3], b=u[3:5], beta=u[5:8])
    assert ppi == pytest.approx(
        float(one[:2] @ A @ one[:2] + u[3:5] @ one[:2] + u[5:8] @ one.log())
    )
    A = symmetric(torch.cat([u[:5], torch.zeros(1)]))
    bingham = value(models.Bingham(3, linear=True), A=u[:5], eta=u[5:8])
    assert bingham == pytest.approx(float(one @ A @ one + u[5:8] @ one))
    assert value(models.VonMisesFisher(3), eta=u[:3]) == pytest.approx(float(u[:3] @ one))
    W, alpha = u[:6].reshape(2, 3), u[6:8].exp()
    experts = value(models.StudentTExperts(3, 2), filters=W, log_alpha=u[6:8])
    assert experts == pytest.approx(-float(alpha @ (1 + 0.5 * (W @ one) ** 2).log()))
    ica = value(models.ICA(3, 2), unmixing=W)
    expected = -2 * (math.pi / (2 * 3**0.5) * (W @ one)).cosh().log().sum()
    assert ica == pytest.approx(float(expected))


# Fits.


def test_gaussian() -> None:
    precision, mean = tensor([[2.0, 0.6], [0.6, 1.0]]), tensor([0.5, -1.0])
    x = tensor(rng().multivariate_normal(mean.numpy(), np.linalg.inv(precision.numpy()), 2000))
    model = models.Gaussian(2)
    result = fit(model, x)
    assert_true(result, [*(precision @ mean), 2.0, 0.6, 1.0])
    assert [*result.params][2:] == ["precision[0,0]", "precision[0,1]", "precision[1,1]"]
    found = result.function(model.mean, ["m0", "m1"])
    np.testing.assert_allclose(np.asarray(found.params), x.mean(0), rtol=1e-9)
    # The mean of normal points has the covariance S / N, whatever the precision's errors.
    np.testing.assert_allclose(found.cov_params(), np.cov(x.T, bias=True) / 2000, rtol=1e-8)
    centred = fit(models.Gaussian(2, centred=True), x - mean)
    assert_true(centred, [2.0, 0.6, 1.0])
    assert np.asarray(centred.function(model.precision_matrix).params).shape == (4,)


@pytest.mark.parametrize(
    "box",
    [
        PositiveOrthant("min(log(1+x), 2)"),
        Box((0.0, -0.5), (math.inf, 1.5), "min(x, 0.5)"),
    ],
    ids=["orthant", "box"],
)
@pytest.mark.parametrize(
    "objective",
    [sm.ScoreMatching(), sm.SlicedScoreMatchingVR(), sm.SlicedScoreMatching(num_projections=4)],
    ids=["exact", "reduced", "sliced"],
)
def test_truncated_gaussian(box: Box, objective: sm.Objective) -> None:
    precision, mean = tensor([[1.5, 0.5], [0.5, 1.0]]), tensor([0.5, 0.4])
    x = truncated_normal(4000, mean, precision, box)
    model = models.TruncatedGaussian(2, domain=box)
    result = fit(model, x, objective, generator=torch.Generator().manual_seed(0))
    assert_true(result, [*(precision @ mean), 1.5, 0.5, 1.0])
    # Without the domain the answer is a different, wrong one.
    wrong = fit(models.Gaussian(2), x)
    with pytest.raises(AssertionError):
        assert_true(wrong, [*(precision @ mean), 1.5, 0.5, 1.0])


def test_gamma() -> None:
    shape, rate = np.array([1.7, 3.0]), np.array([2.0, 0.8])
    x = tensor(rng().gamma(shape, 1 / rate, (4000, 2)))
    model = models.PairwiseInteraction.gamma(2, domain=PositiveOrthant("min(x^2, 4)"))
    result = fit(model, x)
    assert_true(result, [*(shape - 1), rate[0], 0.0, rate[1]])
    matrix = result.function(model.interaction_matrix)
    assert matrix.params["g[1]"] == matrix.params["g[2]"] == result.params["interaction[0,1]"]


@pytest.mark.parametrize("shape", [0.3, 1.0])
def test_gamma_of_small_shape(shape: float) -> None:
    """With the weight min(x, 1) a shape of 0.3 was estimated as 1.00000001, error 1e-8."""
    x = tensor(rng().gamma(shape, size=(4000, 1)))
    assert_true(fit(models.PairwiseInteraction.gamma(1), x), [shape - 1, 1.0])


def test_exponential_square_root() -> None:
    """With K alone ``log p = -K x``; with linear alone, ``2 linear sqrt(x)``."""
    x = tensor(
        rng().gamma(2.0, 1.0, (4000, 1))
    ).square()  # sqrt(x) ~ Gamma(2): p(x) = exp(-sqrt x)/2
    model = models.PairwiseInteraction.exponential_square_root(1, PositiveOrthant("min(x, 30)"))
    assert_true(fit(model, x), [-0.5, 0.0])


def test_estimates_that_are_no_density_are_said() -> None:
    """Log-normal points with a correlation of 0.9, fitted by the gamma model."""
    x = np.exp(rng().normal(size=(2000, 2)) @ [[0.7, 1.0], [0.0, 0.5]])
    found = fit(models.PairwiseInteraction.gamma(2), x)
    powers = found.theta["linear"]
    assert powers[1] < -1 < powers[0]
    assert "power of -1 or less, linear[1]." in str(found.summary())
    proper = fit(models.PairwiseInteraction.gamma(1), rng().gamma(0.3, 1.0, (2000, 1)))
    assert "Not a density" not in str(proper.summary())
    # Without interactions of a = 1/2 the power belongs to the log-normal distribution.
    lognormal = fit(models.PairwiseInteraction(2, 0, 0), rng().lognormal(-3.0, 1.0, (2000, 2)))
    assert lognormal.theta["linear"][0] < -1
    assert "Not a density" not in str(lognormal.summary())
    model = models.PPI(3, interaction=False)
    assert model.too_steep({"beta": tensor([-0.9, -1.0, -1.2])}) == ["beta[1]", "beta[2]"]
    assert models.PPI(3, beta=[-0.5] * 3).too_steep({}) == []


def test_dirichlet() -> None:
    alpha = np.array([1.2, 2.5, 0.7])
    x = tensor(rng().dirichlet(alpha, 4000))
    for domain in (Simplex("prodsq", 0.1), Simplex("minsq", 0.2)):
        result = fit(models.PPI(3, interaction=False, domain=domain), Simplex.interior(x))
        assert_true(result, alpha - 1)


@pytest.mark.parametrize("weight", ["minsq", "prodsq"])
def test_the_order_of_proportions_does_not_matter(weight: str) -> None:
    """Where several are zero, the first of them had all of the weight's slope."""
    x = rng().dirichlet([0.4, 0.6, 2.0, 3.0], 300)
    x[x < 0.03] = 0.0
    x = Simplex.interior(x / x.sum(1, keepdims=True))
    assert ((x < 1e-19).sum(1) == 2).sum() > 30
    model = models.PPI(4, interaction=False, domain=Simplex(weight, cap=0.1))
    plain, order = fit(model, x), [2, 1, 0, 3]
    other = fit(model, x[:, order])
    np.testing.assert_allclose(np.array(other.params), np.array(plain.params)[order], rtol=1e-8)
    np.testing.assert_allclose(np.array(other.bse), np.array(plain.bse)[order], rtol=1e-8)


def test_interior_takes_arrays_and_tables() -> None:
    """The message about zeros advises it to those who have a data frame."""
    x = np.array([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0]])
    wanted = torch.tensor([[1e-20, 0.25, 0.75], [0.5, 0.5, 1e-20]], dtype=torch.float64)
    for given in (x, pd.DataFrame(x), x.tolist(), torch.as_tensor(x)):
        torch.testing.assert_close(Simplex.interior(given), wanted, rtol=1e-12, atol=0)


def test_von_mises_fisher() -> None:
    eta = tensor([1.0, 2.0])
    x = on_circle(4000, lambda x: x @ eta)
    model = models.VonMisesFisher(2)
    result = fit(model, x)
    assert_true(result, eta)
    kappa = result.function(model.concentration, ["kappa"])
    direction = result.function(model.mean_direction)
    assert abs(kappa.params["kappa"] - 5**0.5) < 5 * kappa.bse["kappa"]
    np.testing.assert_allclose(np.asarray(direction.params), eta / 5**0.5, atol=0.1)
    # Mardia, Kent and Laha (2016): kappa = (D - 1) R / (1 - mean (mu.x)^2) about the fitted mean.
    mu = tensor(np.asarray(direction.params))
    along = x @ mu
    expected = float(along.mean() / (1 - along.square().mean()))
    assert kappa.params["kappa"] == pytest.approx(expected, rel=1e-8)


def test_bingham() -> None:
    A = tensor([[1.0, 0.7], [0.7, 0.0]])
    x = on_circle(4000, lambda x: ((x @ A) * x).sum(-1))
    model = models.Bingham(2)
    assert_true(fit(model, x), [1.0, 0.7])
    assert_true(fit(models.Bingham(2, linear=True), x), [1.0, 0.7, 0.0, 0.0])
    assert np.asarray(fit(model, x).function(model.matrix).params)[3] == 0


def test_student_t() -> None:
    nu, scale = 5.0, 1.5
    x = tensor(scale * rng().standard_t(nu, (5000, 1)))
    model = models.StudentTExperts(1)
    result = fit(model, x)
    assert_true(result, [(2 / nu) ** 0.5 / scale, math.log((nu + 1) / 2)])
    degrees = result.function(model.degrees_of_freedom, ["nu"])
    assert abs(degrees.params["nu"] - nu) < 5 * degrees.bse["nu"]


def test_experts_in_the_plane() -> None:
    """Independent Student-t sources, mixed: the product of two experts."""
    sources = rng().standard_t(5.0, (5000, 2)) * (2 / 5) ** 0.5
    filters = np.array([[1.0, 0.3], [-0.2, 0.8]])
    x = tensor(sources @ np.linalg.inv(filters).T)
    truth = [*filters.flatten(), math.log(3), math.log(3)]
    # Filters may come in any order and sign; the start decides which.
    result = fit(models.StudentTExperts(2), x, start={"filters": filters})
    assert_true(result, truth)
    assert fit(models.StudentTExperts(2, 3), x).theta["filters"].shape == (3, 2)


def test_ica() -> None:
    sources = rng().logistic(size=(5000, 2)) * 3**0.5 / math.pi  # variance one
    unmixing = np.array([[1.0, 0.4], [-0.3, 0.9]])
    x = tensor(sources @ np.linalg.inv(unmixing).T)
    assert_true(fit(models.ICA(2), x), unmixing)
    assert_true(fit(models.ICA(2), x, sm.SlicedScoreMatchingVR()), unmixing)


@pytest.mark.parametrize("unit", [1e-6, 100.0, 1e8])
def test_filters_start_in_units_of_the_columns(unit: float) -> None:
    """In units of 100 fits ended, without a word, in peaks on single points."""
    x = tensor(2 * rng().standard_t(5.0, (1000, 2)) @ np.array([[1.0, 0.4], [0.2, 1.0]]))
    for model in (models.StudentTExperts(2), models.ICA(2)):
        expected, found = fit(model, x), fit(model, unit * x)
        np.testing.assert_allclose(
            np.asarray(found.bse) / np.asarray(expected.bse),
            units_of_errors(model, unit),
            rtol=1e-4,
        )


def units_of_errors(model: nn.Module, unit: float) -> list[float]:
    """Filters shrink where points grow; powers stay."""
    sizes = [(name, p.numel()) for name, p in model.named_parameters()]
    return [1.0 if name == "log_alpha" else 1 / unit for name, size in sizes for _ in range(size)]


def test_filters_of_ones_own_are_the_start() -> None:
    x = tensor(rng().standard_t(5.0, (500, 1)))
    model = models.StudentTExperts(1)
    with torch.no_grad():
        model.filters.fill_(-2.0)
    assert model.initial(x)["filters"].item() == -2.0
    assert fit(model, x).params["filters[0,0]"] < 0
    model.filters.requires_grad_(False)
    assert [*fit(model, x).params] == ["log_alpha[0]"]


def test_models_know_their_domain() -> None:
    assert isinstance(models.TruncatedGaussian(1).domain, PositiveOrthant)
    assert isinstance(models.PPI(3).domain, Simplex)
    assert isinstance(models.VonMisesFisher(3).domain, Sphere)
    x = tensor(rng().gamma(2.0, 1.0, (100, 1)))
    own = fit(models.TruncatedGaussian(1), x)
    given = fit(models.TruncatedGaussian(1), x, domain=PositiveOrthant())
    other = fit(models.TruncatedGaussian(1), x, domain=PositiveOrthant("min(x, 3)"))
    in_objective = fit(
        models.TruncatedGaussian(1), x, sm.ScoreMatching(domain=PositiveOrthant("min(x, 3)"))
    )
    assert own.params == given.params and other.params == in_objective.params
    assert own.params != other.params
    assert "PositiveOrthant" in str(own.summary())


def test_points_where_the_density_is_infinite_are_named() -> None:
    x = tensor(rng().gamma(2.0, 1.0, (300, 1)))
    x[[7, 250]] = 0.0
    with pytest.raises(ValueError, match=r"2 of 300 rows that do not: 7, 250; move these rows"):
        fit(models.PairwiseInteraction.gamma(1), x)


@pytest.mark.parametrize("max_memory", [None, 2**22])
def test_the_point_is_named_among_few(max_memory: int | None) -> None:
    """It was the last one, since points are checked in the order of their depth, or in pieces."""
    x = 0.1 + torch.rand(90, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[7, 1] = 0.0
    with pytest.raises(ValueError, match=r"1 of 90 rows that do not: 7; move these rows"):
        fit(models.PairwiseInteraction.gamma(2), x, max_memory=max_memory)


def test_points_outside_the_domain_are_named_beside_missing_entries() -> None:
    """Its number was that among rows of the same missing entries."""
    x = 0.1 + torch.rand(90, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[3, 0] = x[60, 1] = torch.nan
    x[7, 1] = x[60, 0] = -1.0
    with pytest.raises(ValueError, match=r"2 of 90 rows that do not: 7, 60; drop or correct"):
        fit(models.TruncatedGaussian(2), x, missing="weighted")


def test_points_outside_the_domain_are_named() -> None:
    x = tensor(rng().gamma(2.0, 1.0, (300, 1)))
    x[[7, 250]] = -1.0
    with pytest.raises(ValueError, match=r"2 of 300 rows that do not: 7, 250; drop or correct"):
        fit(models.TruncatedGaussian(1), x)


BAD = [
    (lambda: models.PPI(3, beta=[0.0, -1.0, 0.0]), "numbers above -1"),
    (lambda: models.PPI(1), "dim must be at least 2"),
    (lambda: models.Gaussian(0), "dim must be at least 1"),
    (lambda: models.PairwiseInteraction(2, a=-1.0), "a must be a number of at least 0"),
    (lambda: models.StudentTExperts(2, 0), "num_experts"),
    (lambda: models.ICA(2, 0), "num_components"),
    (lambda: fit(models.TruncatedGaussian(1), torch.randn(30, 1)), "x must lie in PositiveOrthant"),
    (
        lambda: fit(
            models.Gaussian(1), torch.ones(9, 1), sm.DenoisingScoreMatching(1.0), domain=Box()
        ),
        "domain must be None",
    ),
    (
        lambda: fit(
            models.Gaussian(1), torch.ones(9, 1), sm.ScoreMatching(domain=Box(0, 2)), domain=Box()
        ),
        "domain must be given once",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_quadratic_forms_need_no_products_of_all_pairs() -> None:
    """With them, a fit of 25 columns to 3000 points took seven minutes."""
    form, x = Symmetric(40), torch.randn(1000, 40, generator=torch.Generator().manual_seed(0))
    entries = torch.arange(820.0) / 820
    with Allocations() as used:
        found = form.form(entries, x)
    torch.testing.assert_close(found, torch.einsum("ni,ij,nj->n", x, form.matrix(entries), x))
    assert used.peak < x.element_size() * 1000 * 820 / 2

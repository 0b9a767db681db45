"""Rows with missing entries, and rows that do not belong."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import scorematching as sm
from scorematching.domains import Box, PositiveOrthant, Simplex
from scorematching.inference import (
    FitResult,
    ImportanceWeighted,
    NotConvergedError,
    SingularInformationError,
    fit,
    fit_robust,
)
from scorematching.inference.fitting import prepare
from scorematching.inference.missing import Marginal
from scorematching.inference.models import PPI, Gaussian, TruncatedGaussian, VonMisesFisher
from scorematching.inference.pieces import ProblemInPieces
from scorematching.inference.problem import jacobian

PRECISION = np.array([[1.5, 0.6], [0.6, 1.0]])


def normal_points(n: int, seed: int = 0) -> Tensor:
    g = np.random.default_rng(seed)
    return torch.as_tensor(g.multivariate_normal(np.zeros(2), np.linalg.inv(PRECISION), n))


def without(x: Tensor, share: float, seed: int = 1) -> Tensor:
    """Entries removed at random, at most one of a row."""
    g = torch.Generator().manual_seed(seed)
    rows = (torch.rand(len(x), generator=g) < share).nonzero()[:, 0]
    x = x.clone()
    x[rows, torch.randint(0, x.shape[1], rows.shape, generator=g)] = math.nan
    return x


def z_scores(result: FitResult, truth: list[float]) -> np.ndarray:
    return (np.asarray(result.params) - truth) / np.asarray(result.bse)


LIMIT = scipy.stats.norm.isf(0.5e-6)

# Missing entries.


def test_incomplete_rows_in_pieces() -> None:
    """With a limit of memory they ended in an error of torch about sizes."""
    x = without(normal_points(30), 0.5)
    weighted = ImportanceWeighted(20)
    whole = prepare(Gaussian(2), x, None, None, None, None, weighted, torch.Generator()).problem
    pieces = ProblemInPieces(whole.model, whole.parts, whole.weights, max_memory=2**24)
    for found, expected in zip(
        pieces.derivatives(whole.model.start), whole.derivatives(whole.model.start)
    ):
        torch.testing.assert_close(found, expected)


def test_too_few_draws_are_refused() -> None:
    """With 20 draws the precision was too small by a quarter, four standard errors."""
    covariance = np.array([[1.0, 0.98], [0.98, 1.0]])
    points = np.random.default_rng(0).multivariate_normal(np.zeros(2), covariance, 400)
    x, g = without(torch.as_tensor(points), 0.4), torch.Generator()
    with pytest.raises(
        ValueError, match=r"need more draws, got 20 .* of which 3\.\d count"
    ) as error:
        fit(Gaussian(2), x, missing=ImportanceWeighted(20), generator=g)
    enough = int(str(error.value).split("draws=")[1].rstrip(")"))
    result = fit(Gaussian(2), x, missing=ImportanceWeighted(enough), generator=g)
    truth = np.linalg.inv(covariance)
    assert (abs(z_scores(result, [0, 0, *truth[0], truth[1, 1]])) < LIMIT).all()
    rare = without(torch.as_tensor(points), 0.02)
    fit(Gaussian(2), rare, missing=ImportanceWeighted(20), generator=g)


def test_marginal_density() -> None:
    """With draws on a grid the weighted sum is the integral."""
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None, None].expand(4001, 3, 1)
    pattern = torch.tensor([False, True])
    p = torch.as_tensor(PRECISION)
    joint = lambda x: -0.5 * ((x @ p) * x).sum(-1)  # noqa: E731
    x = torch.tensor([[0.3], [-1.0], [2.0]], dtype=torch.float64)
    found = Marginal(pattern, z, torch.zeros(4001, 3))(joint)(x)
    variance = np.linalg.inv(PRECISION)[0, 0]
    expected = -0.5 * x[:, 0].square() / variance
    torch.testing.assert_close(found - found[0], expected - expected[0])
    swapped = Marginal(~pattern, z, torch.zeros(4001, 3))(joint)(x)
    expected = -0.5 * x[:, 0].square() / np.linalg.inv(PRECISION)[1, 1]
    torch.testing.assert_close(swapped - swapped[0], expected - expected[0])


def test_marginal_density_is_normalised() -> None:
    """Draws whose density is that of the model weigh one; their number was a factor."""
    normal = torch.distributions.Normal(0.0, 1.0)
    z, x = normal_points(12)[:, :1].reshape(4, 3, 1), normal_points(3)[:, 1:]
    marginal = Marginal(torch.tensor([False, True]), z, normal.log_prob(z[..., 0]))
    found = marginal(lambda x: normal.log_prob(x).sum(-1))(x)
    torch.testing.assert_close(found, normal.log_prob(x[:, 0]))


@pytest.mark.parametrize(
    "objective", [sm.ScoreMatching(), sm.SlicedScoreMatchingVR()], ids=["exact", "reduced"]
)
def test_missing_entries_are_used(objective: sm.Objective) -> None:
    x = without(normal_points(800), 0.5)
    g = torch.Generator().manual_seed(0)
    result = fit(
        Gaussian(2, centred=True), x, objective, missing=ImportanceWeighted(50), generator=g
    )
    complete = fit(Gaussian(2, centred=True), x[~x.isnan().any(1)], objective, generator=g)
    assert result.nobs == 800 > complete.nobs
    assert np.abs(z_scores(result, [1.5, 0.6, 1.0])).max() < LIMIT
    # Rows with one entry tell about the diagonal, not about the product of the two.
    for name in ("precision[0,0]", "precision[1,1]"):
        assert result.bse[name] < 0.95 * complete.bse[name]


@pytest.mark.parametrize("box", [PositiveOrthant(), Box((0.0, 0.0), (3.0, math.inf))], ids=str)
def test_missing_entries_on_a_box(box: Box) -> None:
    x = normal_points(16000)
    x = without(x[box.depth(x) > 0], 0.3)
    g = torch.Generator().manual_seed(0)
    model = TruncatedGaussian(2, centred=True, domain=box)
    result = fit(model, x, missing=ImportanceWeighted(50), generator=g)
    assert np.abs(z_scores(result, [1.5, 0.6, 1.0])).max() < LIMIT


def test_complete_rows_need_no_draws() -> None:
    x = normal_points(50)
    assert fit(Gaussian(2), x, missing="weighted").params == fit(Gaussian(2), x).params


def test_missing_entries_are_refused_by_row() -> None:
    x = normal_points(50)
    x[[4, 9], 0] = math.nan
    with pytest.raises(ValueError, match=r'2 of 50 rows that do not: 4, 9; .*missing="weighted"'):
        fit(Gaussian(2), x)
    x[4] = math.nan
    with pytest.raises(ValueError, match=r"every row of X must have an entry, .* 4;"):
        fit(Gaussian(2), x, missing="weighted")
    with pytest.raises(ValueError, match="every column of X must have an entry"):
        fit(Gaussian(2), torch.stack([x[5:, 1], x[5:, 1] * math.nan], 1), missing="weighted")
    with pytest.raises(ValueError, match="missing must be None"):
        fit(Gaussian(2), x, missing="mean")
    x = x[5:]
    with pytest.raises(ValueError, match="got a score network"):
        fit(sm.VectorField(torch.nn.Linear(2, 2)), x, missing="weighted")
    with pytest.raises(ValueError, match="a domain that is a box"):
        fit(PPI(2), x, missing="weighted")
    with pytest.raises(ValueError, match="draws must be at least 1"):
        ImportanceWeighted(0)


# Outliers.


def test_outliers_hardly_count() -> None:
    x = normal_points(1000)
    spoilt = torch.cat([x, torch.full((50, 2), 15.0, dtype=torch.float64)])
    plain = fit(Gaussian(2), spoilt)
    robust = fit_robust(Gaussian(2), spoilt, power=0.3)
    truth = [0.0, 0.0, 1.5, 0.6, 1.0]
    assert np.abs(z_scores(robust, truth)).max() < LIMIT < np.abs(z_scores(plain, truth)).max()
    assert "Windham" in robust.method and len(robust.predict(x)) == 1000
    # Without outliers it agrees with the plain fit, and is a little less precise.
    clean, both = fit(Gaussian(2), x), fit_robust(Gaussian(2), x, power=0.3)
    assert np.abs(z_scores(both, truth)).max() < LIMIT
    assert (np.asarray(both.bse) > np.asarray(clean.bse)).all()


def test_equation_and_errors_of_a_robust_fit() -> None:
    """One number: sum of w (tau (1 + c) x^2 - 1) = 0 with w = exp(-c tau x^2 / 2)."""
    x, c = normal_points(400)[:, :1].numpy(), 0.4
    result = fit_robust(Gaussian(1, centred=True), x, power=c)
    square = x[:, 0] ** 2

    def equation(tau: float) -> np.ndarray:
        # The gradient of 0.5 ((1 + c) tau x)^2 - (1 + c) tau in tau, weighted.
        return np.exp(-0.5 * c * tau * square) * ((1 + c) ** 2 * tau * square - (1 + c))

    tau = result.params[0]
    assert abs(equation(tau).mean()) < 1e-8
    step = 1e-5
    slope = (equation(tau + step).mean() - equation(tau - step).mean()) / (2 * step)
    expected = math.sqrt((equation(tau) ** 2).mean() / len(x)) / abs(slope)
    assert result.bse[0] == pytest.approx(expected, rel=1e-6)


def test_errors_of_a_robust_fit_take_few_backward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took one for each point, and memory for N^2 numbers: 20 GB for 50,000 points."""
    sizes = []

    def counted(g: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        sizes.append(len(g))
        return jacobian(g, inputs)

    monkeypatch.setattr("scorematching.inference.robust.jacobian", counted)
    fit_robust(Gaussian(2), normal_points(100), power=0.1)
    assert sizes == [5]


@pytest.mark.parametrize("cluster", [None, torch.arange(100) % 7])
def test_h_and_k_of_a_robust_fit_give_the_covariance(cluster: Tensor | None) -> None:
    """H was that of fixed weights, with which `how_many_projections` was too low."""
    found = fit_robust(Gaussian(2), normal_points(100), power=0.3, cluster=cluster)
    inverse = np.linalg.inv(found.H)
    np.testing.assert_allclose(inverse @ found.K @ inverse.T / 100, found.cov_params(), rtol=1e-8)


def test_a_robust_fit_can_be_pickled() -> None:
    found = fit_robust(Gaussian(2), normal_points(50), power=0.1)
    loaded = pickle.loads(pickle.dumps(found))
    assert str(loaded.summary()) == str(found.summary())


def test_clusters_of_a_robust_fit() -> None:
    """The equation of one number again, with the variance of its sums in clusters."""
    x, c, labels = normal_points(200)[:, :1].numpy(), 0.4, np.arange(200) % 40
    found = fit_robust(Gaussian(1, centred=True), x, power=c, cluster=labels)
    tau, square, step = found.params[0], x[:, 0] ** 2, 1e-5

    def equation(tau: float) -> np.ndarray:
        return np.exp(-0.5 * c * tau * square) * ((1 + c) * tau * square - 1)

    slope = (equation(tau + step).sum() - equation(tau - step).sum()) / (2 * step)
    sums = np.array([equation(tau)[labels == k].sum() for k in range(40)])
    expected = math.sqrt((sums**2).sum() * 40 / 39) / abs(slope)
    assert found.bse[0] == pytest.approx(expected, rel=1e-6)
    assert "robust to 40 clusters" in str(found.summary())
    with pytest.raises(ValueError, match="cluster must hold one label per row"):
        fit_robust(Gaussian(1, centred=True), x, power=c, cluster=labels[:5])


def test_robust_fit_of_directions() -> None:
    angle = torch.as_tensor(np.random.default_rng(0).vonmises(0.0, 5.0, 500))
    x = torch.stack([angle.cos(), angle.sin()], -1)
    x = torch.cat([x, -x[:60]])
    model = VonMisesFisher(2)
    kappa = [
        r.function(model.concentration).params[0]
        for r in (fit(model, x), fit_robust(model, x, 0.5))
    ]
    assert kappa[0] < 0.8 * 5 < kappa[1] < 1.3 * 5


def test_weights_from_part_of_the_density() -> None:
    """A density that is infinite where proportions vanish has its weights from another part."""
    x = Simplex.interior(torch.as_tensor(np.random.default_rng(0).dirichlet([0.3, 2.0, 2.0], 500)))
    model = PPI(3, beta=[-0.7, 1.0, 1.0], domain=Simplex(cap=0.1))
    result = fit_robust(
        model, x, 0.05, log_weight=lambda theta, x: model._symmetric.form(theta["A"], x[:, :2])
    )
    assert np.abs(z_scores(result, [0.0, 0.0, 0.0])).max() < LIMIT


def test_too_large_a_power_is_named() -> None:
    """The advice was to collect points that tell parameters apart."""
    with pytest.raises(NotConvergedError, match=r"power 5 .* of 200 count.* smaller power"):
        fit_robust(Gaussian(2), normal_points(200), power=5)


def test_a_robust_fit_has_no_error_of_a_parameter_on_its_boundary() -> None:
    """The precision ``2 + a^2`` cannot be one: a was zero with an error of zero."""

    def bounded(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return -0.5 * (2 + theta["a"] ** 2) * x.square().sum(-1) + theta["b"] * x.sum(-1)

    x = np.random.default_rng(0).normal(size=(300, 1))
    with pytest.raises(SingularInformationError, match="estimates of a: such a parameter lies"):
        fit_robust(bounded, x, 0.1, start={"a": 1.0, "b": 0.0})


def test_robust_fits_advise_what_they_take() -> None:
    x = without(normal_points(50), 0.3)
    with pytest.raises(ValueError, match=r"X must have no missing values.*; drop these rows$"):
        fit_robust(Gaussian(2), x, power=0.1)


@pytest.mark.parametrize("objective", [sm.MaximumLikelihood(), sm.DenoisingScoreMatching(0.5)])
def test_robust_fits_take_no_loss_that_the_weights_bias(objective: sm.Objective) -> None:
    """By maximum likelihood with a power of 0.3 a standard deviation of 1 was 0.84."""

    def normal(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return (-0.5 * (x / theta["log_sd"].exp()).square() - theta["log_sd"]).sum(-1)

    with pytest.raises(ValueError, match=r"objective must be ScoreMatching\(\) or a sliced one"):
        fit_robust(normal, normal_points(50), 0.3, objective=objective, start={"log_sd": 0.0})


def test_bad_input_of_robust_fits() -> None:
    x = normal_points(50)
    with pytest.raises(ValueError, match="power must be positive"):
        fit_robust(Gaussian(2), x, 0.0)
    with pytest.raises(ValueError, match=r"log_weight must return .* shape \(50,\), got \(50, 2\)"):
        fit_robust(Gaussian(2), x, 0.1, log_weight=lambda theta, x: -x.square())
    with pytest.raises(TypeError, match="got a score network"):
        fit_robust(sm.VectorField(torch.nn.Linear(2, 2)), x, 0.1)

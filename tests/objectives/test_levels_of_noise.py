"""Denoising with one sigma per coordinate or a ladder of levels, and local curvature smoothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching.objectives.denoising import LadderNoise, NoiseLadder
from scorematching.samplers import anneal, noise_levels
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY

PRECISION = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)


def log_density(x: Tensor) -> Tensor:
    return -0.5 * (x.square() @ PRECISION) + 0.3 * x[:, 0].sin()


def draw(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64)


# One sigma per coordinate.


@pytest.mark.parametrize("number", [torch.tensor(0.5), np.array(0.5), np.float32(0.5)], ids=repr)
def test_sigma_may_be_an_array_without_axes(number: Any) -> None:
    """Such as a share of the standard deviation of the points."""
    assert sm.DenoisingScoreMatching(number) == sm.DenoisingScoreMatching(0.5)


@pytest.mark.parametrize("make", [sm.DenoisingScoreMatching, NoiseLadder])
def test_an_array_with_two_axes_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match=r"numbers in one row, got an array of shape \(1, 2\)"):
        make(np.ones((1, 2)))


@pytest.mark.parametrize("levels", [1.0, torch.tensor(1.0)], ids=repr)
def test_a_single_level_is_refused(levels: Any) -> None:
    with pytest.raises(TypeError, match="levels must be numbers in one row"):
        NoiseLadder(levels)


@pytest.mark.parametrize("control_variate", [False, True])
def test_one_sigma_per_coordinate(control_variate: bool) -> None:
    """The same as one sigma for points in other units, except for the square."""
    x, eps, sigma = draw((6, 3)), draw((6, 3), 1), (0.1, 0.5, 2.0)
    objective = sm.DenoisingScoreMatching(sigma, control_variate)
    first, second = objective.terms(sm.LogDensityField(log_density), x, eps)
    spread = torch.tensor(sigma, dtype=torch.float64)
    score = sm.LogDensityField(log_density).score(x + spread * eps)
    known = sm.LogDensityField(log_density).score(x) if control_variate else 0.0
    expected = (eps / spread * (score - known)).sum(-1)
    torch.testing.assert_close(first, score, rtol=IDENTITY, atol=IDENTITY)
    torch.testing.assert_close(second, expected, rtol=IDENTITY, atol=IDENTITY)
    equal = sm.DenoisingScoreMatching([0.5] * 3).loss(sm.LogDensityField(log_density), x, eps)
    one = sm.DenoisingScoreMatching(0.5).loss(sm.LogDensityField(log_density), x, eps)
    torch.testing.assert_close(equal, one, rtol=IDENTITY, atol=IDENTITY)


def test_it_learns_the_score_of_the_noisy_points(generator: torch.Generator) -> None:
    """Normal points with noise: precision 1 / (1 / tau + sigma^2), coordinate by coordinate."""
    sigma = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    x = draw((4000, 3)) / PRECISION.sqrt()
    model = sm.inference.models.Gaussian(3)
    result = sm.inference.fit(
        model, x, sm.DenoisingScoreMatching(sigma.tolist()), generator=generator
    )
    truth = 1 / (1 / PRECISION + sigma.square())
    for i in range(3):
        name = f"precision[{i},{i}]"
        assert abs(result.params[name] - truth[i].item()) < 5 * result.bse[name]
        assert result.bse[name] < 0.2 * truth[i].item()


# A ladder of levels.


class Levels(nn.Module):
    """The score of normal points with noise, ``-x / (a + sigma^2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        return -x / (self.a + sigma * sigma)


def test_ladder_is_denoising_at_the_level_of_each_point() -> None:
    x, eps = draw((6, 2)), draw((6, 2), 1)
    level = torch.tensor([0, 1, 2, 0, 1, 2])
    ladder = sm.NoiseLadder((2.0, 1.0, 0.5), weights=(1.0, 3.0, 5.0))
    net = Levels()
    losses = sm.DenoisingScoreMatching(ladder).loss(sm.VectorField(net), x, LadderNoise(eps, level))
    for i, (sigma, weight) in enumerate(zip(ladder.levels, ladder.weights)):
        rows = level == i
        one = sm.VectorField(lambda x, sigma=sigma: net(x, sigma))
        alone = sm.DenoisingScoreMatching(sigma).loss(one, x[rows], eps[rows])
        torch.testing.assert_close(losses[rows], weight * alone, rtol=IDENTITY, atol=IDENTITY)
    assert sm.NoiseLadder((2.0, 0.5)).weights == (4.0, 0.25)


def test_a_ladder_trains_what_annealing_uses(generator: torch.Generator) -> None:
    x = 3.0 * draw((2000, 2))
    levels = noise_levels(5.0, 0.1, 8)
    net = Levels()
    objective = sm.DenoisingScoreMatching(sm.NoiseLadder(tuple(levels)))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.5)
    for _ in range(300):
        optimiser.zero_grad()
        objective(sm.VectorField(net), x, generator=generator).mean().backward()
        optimiser.step()
    assert net.a.item() == pytest.approx(9.0, rel=0.2)
    with torch.no_grad():
        samples, _ = anneal(net, torch.zeros(500, 2).double(), levels, 0.05, 30, generator)
    assert samples.std().item() == pytest.approx(3.0, rel=0.25)


def test_ladders_take_log_densities_too() -> None:
    def density(x: Tensor, sigma: Tensor) -> Tensor:
        return -0.5 * (x.square() / (1 + sigma.square())).sum(-1)

    objective = sm.DenoisingScoreMatching(sm.NoiseLadder((1.0, 0.1)))
    losses = [
        objective(model, draw((5, 2)), generator=torch.Generator().manual_seed(0))
        for model in (density, sm.VectorField(lambda x, sigma: -x / (1 + sigma.square())))
    ]
    torch.testing.assert_close(*losses)


def test_features_on_a_ladder_have_their_own_terms() -> None:
    """As many features as points: weights of points would pass as those of features."""
    x = draw((3, 2))

    def features(x: Tensor, sigma: Tensor) -> Tensor:
        quadratic = -0.5 * (x.square() / (1 + sigma.square())).sum(-1)
        return torch.stack([quadratic, 2 * quadratic, x.sin().sum(-1)], 1)

    objective = sm.DenoisingScoreMatching(sm.NoiseLadder((1.0, 0.1)))
    noise = objective.draw(x, torch.Generator().manual_seed(1))
    assert len(noise.level.unique()) == 2
    first, second = objective.terms(sm.LogDensityField(features), x, noise)
    for i in range(3):
        one = sm.LogDensityField(lambda x, sigma, i=i: features(x, sigma)[:, i])
        alone = objective.terms(one, x, noise)
        torch.testing.assert_close(first[:, i], alone.first)
        torch.testing.assert_close(second[:, i], alone.second)


def test_a_score_network_on_a_ladder_is_wrapped() -> None:
    network = sm.models.ScoreNetwork(3, (8,), context_dim=1).double()
    objective = sm.DenoisingScoreMatching(sm.NoiseLadder((1.0, 0.1)))
    with pytest.raises(ValueError, match=r"wrap a score network in VectorField"):
        objective(network, draw((5, 3)))


# Local curvature smoothing.


def test_smoothed_trace_is_that_of_the_neighbourhood(generator: torch.Generator) -> None:
    """E tr grad s(x + sigma eps): the sine loses the factor exp(-sigma^2 / 2)."""
    sigma = 0.8
    objective = sm.LocalCurvatureSmoothing(sigma=sigma, num_projections=200_000)
    x = torch.tensor([[0.7, -0.2, 0.5]], dtype=torch.float64)
    eps = objective.draw(x, generator)
    field = sm.VectorField(
        lambda x: -PRECISION * x + 0.3 * torch.cos(x) * torch.tensor([1.0, 0.0, 0.0]),
        check_smoothness=False,
        route="reverse",
    )
    y = x + sigma * eps[:, 0]
    each = (eps[:, 0] * field.score(y)).sum(-1) / sigma
    factor = torch.exp(torch.tensor(-(sigma**2) / 2, dtype=torch.float64))
    expected = -PRECISION.sum() - 0.3 * x[0, 0].sin() * factor
    assert_mean(each, expected.item(), detect=0.1)
    few = sm.LocalCurvatureSmoothing(sigma=sigma).terms(field, x, eps[:7])
    torch.testing.assert_close(few.second, each[:7].mean()[None])
    torch.testing.assert_close(few.first, field.score(x))


def test_small_radius_is_exact_score_matching() -> None:
    """With eps and -eps the even part remains: a central difference of the score along eps."""
    x = draw((5, 3))
    eps = torch.stack([draw((5, 3), 1), -draw((5, 3), 1)])
    field = sm.LogDensityField(log_density)
    smoothed = sm.LocalCurvatureSmoothing(sigma=1e-4).loss(field, x, eps)
    sliced = sm.SlicedScoreMatchingVR().loss(field, x, eps)
    torch.testing.assert_close(smoothed, sliced, rtol=1e-6, atol=1e-6)


def test_variance_report_takes_it(generator: torch.Generator) -> None:
    report = sm.variance_report(
        log_density,
        draw((32, 3)),
        sm.LocalCurvatureSmoothing(),
        repeats=8,
        show=False,
        generator=generator,
        num_projections=(1, 2),
    )
    assert {row.objective for row in report.rows} >= {"LocalCurvatureSmoothing"}


def test_features_have_their_own_terms() -> None:
    x, eps = draw((4, 3)), draw((2, 4, 3), 1)

    def features(x: Tensor) -> Tensor:
        return torch.stack([log_density(x), x.square().sum(-1)], 1)

    objective = sm.LocalCurvatureSmoothing(sigma=0.3)
    first, second = objective.terms(sm.LogDensityField(features), x, eps)
    for i in range(2):
        one = sm.LogDensityField(lambda x, i=i: features(x)[:, i])
        alone = objective.terms(one, x, eps)
        torch.testing.assert_close(first[:, i], alone.first)
        torch.testing.assert_close(second[:, i], alone.second)


BAD = [
    (lambda x: sm.DenoisingScoreMatching((0.1, 0.0)), "every number in sigma must be positive"),
    (lambda x: sm.DenoisingScoreMatching("0.1"), "sigma must be a positive number"),
    (lambda x: sm.DenoisingScoreMatching((0.1, 0.2))(log_density, x), "each of the 3 coordinates"),
    (lambda x: sm.NoiseLadder(()), "levels must hold at least one number"),
    (lambda x: sm.NoiseLadder((1.0, -1.0)), "every number in levels must be positive"),
    (lambda x: sm.NoiseLadder((1.0,), (1.0, 2.0)), "one number per level"),
    (lambda x: sm.LocalCurvatureSmoothing(sigma=0.0), "sigma must be positive"),
    (
        lambda x: sm.inference.fit(
            sm.inference.models.Gaussian(3), x, sm.DenoisingScoreMatching(sm.NoiseLadder((1.0,)))
        ),
        "got a ladder of levels",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call(draw((20, 3)))  # type: ignore[operator]

"""Derivatives by convention are told from functions that are steep beside their points."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import scorematching as sm
from scorematching.derivatives.exceptional import is_exceptional
from scorematching.errors import WrongDerivativeError


def test_a_tie_is_found_where_a_point_far_away_makes_the_spread(generator: torch.Generator) -> None:
    """``max(|a|, |b|)^2 + min(|a|, |b|)^2`` is ``a^2 + b^2``, but not for torch where a = b."""
    x = torch.randn(40, 2, dtype=torch.float64, generator=generator)
    x[0] = 1e4

    def log_density(x: torch.Tensor) -> torch.Tensor:
        return -0.5 * (x.amax(-1).square() + x.amin(-1).square())

    assert sm.ScoreMatching()(log_density, x[1:]).isfinite().all()
    x[1:5, 1] = x[1:5, 0]
    with pytest.raises(WrongDerivativeError, match="right beside them"):
        sm.ScoreMatching()(log_density, x)


def test_a_logarithm_at_tiny_numbers_is_smooth(generator: torch.Generator) -> None:
    """A gamma density with a point near zero: the second derivative is 1e40 there."""
    x = torch.rand(20, 2, dtype=torch.float64, generator=generator)
    x[0, 1] = 1e-20
    score, divergence = sm.LogDensityField(
        lambda x: (2 * x.log() - x).sum(-1)
    ).score_and_divergence(x)
    assert torch.allclose(score, 2 / x - 1, rtol=1e-12)
    assert torch.allclose(divergence, (-2 / x.square()).sum(-1), rtol=1e-12)


def test_structure_far_below_the_spread_of_a_column_is_smooth(generator: torch.Generator) -> None:
    """One point at 1e6 makes a spread beside which the bump of all others is narrow."""
    x = torch.randn(300, 2, generator=generator)
    x[-1, 0] = 1e6
    loss = sm.ScoreMatching()(lambda x: (-0.5 * x.square()).exp().sum(-1), x)
    bump = (-0.5 * x.square()).exp()
    expected = (0.5 * (x * bump).square() + (x.square() - 1) * bump).sum(-1)
    assert torch.allclose(loss, expected, atol=1e-5)


@pytest.mark.parametrize("sharpness", [1e3, 3e3])
def test_bends_within_a_thousandth_of_the_spread_are_smooth(sharpness: float) -> None:
    """In single precision both places beside a point on a lattice were beyond its bend."""
    x = torch.cartesian_prod(*[torch.arange(8.0)] * 2)

    def bends(x: torch.Tensor) -> torch.Tensor:
        return -softplus(sharpness * (x - 2)).sum(-1) / sharpness - 0.5 * x.square().sum(-1)

    score, divergence = sm.LogDensityField(bends).score_and_divergence(x)
    slope = torch.sigmoid(sharpness * (x - 2))
    assert torch.allclose(score, -slope - x)
    assert torch.allclose(divergence, -(sharpness * slope * (1 - slope) + 1).sum(-1))


def density_of_sets(x: torch.Tensor) -> torch.Tensor:
    """A log-density of sets of points ``(N, K, 2)``, filled up with zeros."""
    there = (x != 0).any(-1, keepdim=True)
    return ((x - 1).sin() * there).sum((1, 2)).exp() - (x * there).square().sum((1, 2))


SIZES = torch.arange(40) % 5 + 2


def sets(generator: torch.Generator) -> torch.Tensor:
    """Sets of two to six points in the plane."""
    x = torch.randn(40, 6, 2, dtype=torch.float64, generator=generator)
    return x * (torch.arange(6) < SIZES[:, None])[..., None]


def test_zeros_that_stand_for_padding_are_ordinary(generator: torch.Generator) -> None:
    """The model means another function at zeros than beside them: that of fewer points.

    It was refused if one of the sets that are looked at was filled up.
    """
    x, objective = sets(generator), sm.SlicedScoreMatchingVR()
    v = objective.draw(x, generator)
    loss = objective.loss(sm.LogDensityField(density_of_sets), x, v)
    for size in range(2, 7):
        rows = size == SIZES
        alone = sm.LogDensityField(density_of_sets)
        wanted = objective.loss(alone, x[rows, :size], v[:, rows, :size])
        assert torch.allclose(loss[rows], wanted)


def test_conventions_are_found_in_sets_that_are_not_filled_up(generator: torch.Generator) -> None:
    x = sets(generator)
    x[4, 1, 0] = 0.0
    with pytest.raises(WrongDerivativeError, match="right beside them"):
        sm.ScoreMatching()(lambda x: density_of_sets(x) - x.abs().square().sum((1, 2)), x)


class ScoreOfSets(nn.Module):
    """A score network for sets of points ``(N, K, 2)``, filled up with zeros.

    ``reads`` says how much padding counts in what the other points see.
    """

    def __init__(self, reads: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.each, self.last = (nn.Linear(n, m).double() for n, m in ((2, 8), (10, 2)))
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        there = (x.abs().sum(-1, keepdim=True) > 0).to(x.dtype)
        seen = (torch.tanh(self.each(x)) * (there + self.reads * (1 - there))).sum(1, keepdim=True)
        return self.last(torch.cat([torch.sin(x), seen.expand(-1, x.shape[1], -1)], -1)) * there


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "objective", [sm.SlicedScoreMatchingVR(), sm.SlicedScoreMatching(), sm.ScoreMatching()]
)
def test_score_networks_may_leave_padding_out(
    objective: sm.Objective, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Their scores and curvatures are those of smaller sets, but they were refused."""
    model, x = ScoreOfSets().to(dtype), sets(generator).to(dtype)
    v = objective.draw(x, generator)
    loss = objective.loss(sm.VectorField(lambda x: model(x)), x, v)
    for size in range(2, 7):
        rows = size == SIZES
        alone = sm.VectorField(lambda x: model(x))
        v_alone = None if v is None else v[:, rows, :size]
        wanted = objective.loss(alone, x[rows, :size], v_alone)
        assert torch.allclose(loss[rows], wanted, rtol=1e-4 if dtype == torch.float32 else 1e-9)


def test_padding_that_a_score_network_reads_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(WrongDerivativeError, match="mask them in all that it reads"):
        sm.SlicedScoreMatchingVR()(sm.VectorField(ScoreOfSets(reads=1.0)), sets(generator))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: -x.abs() * x.sign(),  # -x, with a derivative of zero at zero
        lambda x: torch.relu(-x) - torch.relu(x),  # the same
    ],
)
def test_conventions_are_found_in_scores_of_sets(wrong: Any, generator: torch.Generator) -> None:
    """At a zero of a point that is there, and in a network that masks nothing."""
    x, model = sets(generator), ScoreOfSets()
    x[4, 1, 0] = 0.0
    for field in (lambda x: model(x) + wrong(x) * (x != 0).any(-1, keepdim=True), wrong):
        with pytest.raises(WrongDerivativeError, match="right beside them"):
            sm.ScoreMatching()(sm.VectorField(field), x)


def test_answers_that_rounding_spoils_close_to_a_point_clear_nothing() -> None:
    """As of ``where(x == 0, 1, expm1(x) / x)``, whose second derivative at zero is 1/3."""
    x = torch.tensor([[0.0], [1.0], [2.0], [4.0]], dtype=torch.float64)

    def answer(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x.squeeze(1)
        curvature = torch.where(z.abs() < 1e-11, 1e9 * z.sign(), 1 / 3)
        return torch.zeros_like(x), torch.where(z == 0, 0.0, curvature)

    v = torch.ones(1, 4, 1, dtype=torch.float64)
    assert is_exceptional(answer, answer(x, v), x, v)

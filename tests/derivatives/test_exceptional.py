"""Derivatives by convention are told from functions that are steep beside their points."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import softplus

import scorematching as sm
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

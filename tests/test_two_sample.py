"""The two-sample test keeps its level, and sees what it should."""

from __future__ import annotations

import itertools

import pytest
import torch

from scorematching.distributions import Banana, Gaussian
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY
from tests.two_sample import assert_same_law, energy_distance, permutation_p_value


def test_energy_distance_of_single_points() -> None:
    """Point masses at a and b: 2 |a - b|."""
    a, b = torch.tensor([[0.0, 0.0]]).double(), torch.tensor([[3.0, 4.0]]).double()
    assert energy_distance(a, b) == pytest.approx(10.0, rel=IDENTITY)


def test_observed_division_is_compared_by_its_energy_distance(generator: torch.Generator) -> None:
    """Against all 20 divisions of six points, counted by the definition."""
    points = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    observed = energy_distance(points[:3], points[3:])
    divisions = [list(d) for d in itertools.combinations(range(6), 3)]
    others = [[i for i in range(6) if i not in d] for d in divisions]
    distances = [energy_distance(points[d], points[o]) for d, o in zip(divisions, others)]
    truth = sum(d >= observed - 1e-9 for d in distances) / len(distances)
    p = permutation_p_value(points[:3], points[3:], 40_000, generator)
    assert p == pytest.approx(truth, abs=0.02)  # eight standard errors


def test_level_is_exact(generator: torch.Generator) -> None:
    """With 19 permutations, p <= 0.1 has probability 2 / 20 for equal laws."""
    draws = torch.randn(2400, 10, 1, generator=generator, dtype=torch.float64)
    p = [permutation_p_value(row[:5], row[5:], 19, generator) for row in draws]
    assert_mean(torch.tensor(p) <= 0.1 + 1e-9, 0.1, detect=0.05)


def test_sees_shape_beyond_two_moments(generator: torch.Generator) -> None:
    """A banana and the Gaussian of its mean and covariance."""
    banana = Banana(curvature=1.0).to(dtype=torch.float64)
    twin = Gaussian(torch.zeros(2).double(), torch.diag(torch.tensor([1.0, 3.0])).double())
    x, y = banana.sample(400, generator), banana.sample(400, generator)
    assert_same_law(x, y, generator)
    with pytest.raises(AssertionError, match="energy distance"):
        assert_same_law(twin.sample(400, generator), y, generator)

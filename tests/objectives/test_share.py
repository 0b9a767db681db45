"""Noise of some points of a batch, beyond the contract of every objective."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import scorematching as sm
from scorematching._directions import parts_of
from scorematching.types import Terms


def points(count: int = 8) -> Tensor:
    return torch.zeros(count, 6, dtype=torch.float64)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_split_directions_keep_their_parts() -> None:
    """Which coordinates a direction has is not forgotten: products stay cheap."""
    objective, rows = sm.SlicedScoreMatchingVR(num_projections=3), slice(1, None, 2)
    v = objective.draw(points(), seeded())
    dense = v.as_subclass(Tensor).clone()
    shared = objective.share(v, points(), rows)
    parts = parts_of(shared)
    assert parts is not None
    assert torch.equal(parts.dense(), dense[:, rows])
    assert torch.equal(shared.as_subclass(Tensor), dense[:, rows])


def test_halves_stay_independent_where_beta_is_estimated() -> None:
    """A share whose halves mix those of the batch would correlate beta with its directions."""
    objective = sm.SlicedScoreMatchingVR(beta="optimal")
    noise = objective.draw(points(), seeded())
    assert objective.share(noise, points(), slice(0, None, 2)).shape == (1, 4, 6)
    odd = objective.draw(points(6), seeded())
    with pytest.raises(ValueError, match="batch_size must be a multiple of twice"):
        objective.share(odd, points(6), slice(0, None, 2))


def test_noise_of_another_form_needs_a_method_of_its_own() -> None:
    class Level(sm.Objective):
        def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return torch.rand(3, generator=generator)

        def terms(self, field: sm.Field, x: Tensor, noise: Tensor) -> Terms:
            return Terms(field.score(x) * noise.mean(), x.new_zeros(len(x)))

    objective = Level()
    with pytest.raises(ValueError, match=r"8 points along its first axis .* override share"):
        objective.share(objective.draw(points(), seeded()), points(), slice(0, None, 2))

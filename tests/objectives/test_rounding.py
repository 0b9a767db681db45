"""Objectives that add small steps to points, where numbers of their precision are far apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching.objectives.denoising import NoiseLadder

FAR = 1e6
"""Where numbers in single precision are 1/16 apart."""


def points(dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (FAR + torch.randn(512, 2, generator=generator, dtype=torch.float64)).to(dtype)


def normal(x: Tensor) -> Tensor:
    return -0.5 * (x - FAR).square().sum(-1)


CASES = [
    ("sigma", sm.DenoisingScoreMatching(0.03), sm.DenoisingScoreMatching(0.3)),
    ("sigma", sm.DenoisingScoreMatching((0.3, 0.03)), sm.DenoisingScoreMatching((0.3, 0.2))),
    ("eps", sm.FiniteDifferenceSSM(eps=0.3), sm.FiniteDifferenceSSM(eps=3.0)),
    ("eps", sm.NoiseContrastive(eps=0.3), sm.NoiseContrastive(eps=3.0)),
    ("sigma", sm.LocalCurvatureSmoothing(sigma=0.03), sm.LocalCurvatureSmoothing(sigma=0.3)),
]


@pytest.mark.parametrize(("name", "lost", "kept"), CASES, ids=lambda o: repr(o))
def test_steps_that_are_lost_in_rounding_are_refused(
    name: str, lost: sm.Objective, kept: sm.Objective
) -> None:
    """Losses were wrong by up to a factor; those of larger steps and in float64 are right."""
    x = points()
    with pytest.raises(ValueError, match=f"{name} must give steps of at least .*or use float64"):
        lost(normal, x)
    assert lost(normal, x.double()).isfinite().all()
    noise = kept.draw(x.double(), torch.Generator().manual_seed(0))
    field = sm.LogDensityField(normal)
    loss, truth = (kept.loss(field, z, noise.to(z)).mean().item() for z in (x, x.double()))
    assert loss == pytest.approx(truth, abs=0.05)


class Network(nn.Module):
    """A score network that takes the level of noise."""

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        return (FAR - x) / (1 + sigma.square())


def test_the_smallest_level_of_noise_counts() -> None:
    field = sm.VectorField(Network())
    sm.DenoisingScoreMatching(NoiseLadder((1.0, 0.5)))(field, points())
    with pytest.raises(ValueError, match="sigma must give steps"):
        sm.DenoisingScoreMatching(NoiseLadder((1.0, 0.01)))(field, points())


def test_a_few_points_far_out_are_no_mistake() -> None:
    x = points() - FAR
    x[0] = FAR
    loss = sm.DenoisingScoreMatching(0.01)(lambda x: -(1 + x.square()).log().sum(-1), x)
    assert loss.isfinite().all()


def test_a_column_far_out_is_named() -> None:
    x = points() - FAR
    x[:, 1] += FAR
    with pytest.raises(ValueError, match=r"where \|x\| is 1e\+06 and torch.float32 numbers"):
        sm.DenoisingScoreMatching(0.01)(lambda x: -0.5 * x.square().sum(-1), x)

"""Points that carry tangents of forward-mode differentiation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import scorematching as sm
from scorematching import LogDensityField, VectorField
from tests.laws import assert_close
from tests.models_zoo import normal
from tests.tolerances import ROUTES

OBJECTIVES = {
    "exact": sm.ScoreMatching(),
    "sliced": sm.SlicedScoreMatching(),
    "denoising": sm.DenoisingScoreMatching(0.3),
    "differences": sm.FiniteDifferenceSSM(),
    "smoothing": sm.LocalCurvatureSmoothing(),
}
X, TANGENT = normal(2, 5, 3, generator=torch.Generator().manual_seed(0))


def make(is_density: bool, route: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1 if is_density else 3)
    network = nn.Sequential(*layers, *([nn.Flatten(0)] if is_density else [])).double()
    return (LogDensityField if is_density else VectorField)(network, route=route)


@pytest.mark.filterwarnings("ignore::scorematching.PerformanceWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # by torch's forward mode
@pytest.mark.parametrize("route", ["auto", "reverse"])
@pytest.mark.parametrize("is_density", [True, False])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_tangents_of_points_are_those_of_the_gradient(
    name: str, is_density: bool, route: str
) -> None:
    """They were dropped, so that a path through points and weights had the weights' part alone."""
    field, objective = make(is_density, route), OBJECTIVES[name]
    noise = objective.draw(X, torch.Generator().manual_seed(0))
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective.loss(field, x, noise).sum(), x)
    with forward_ad.dual_level():
        loss = objective.loss(field, forward_ad.make_dual(X, TANGENT), noise)
        found = forward_ad.unpack_dual(loss).tangent
    assert found is not None
    assert_close(found.sum(), (gradient * TANGENT).sum(), ROUTES)
    assert not X.requires_grad

"""Models that oscillate many times between two points: sines of large numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching import LogDensityField, VectorField
from scorematching.errors import WrongDerivativeError
from tests.laws import assert_close
from tests.models_zoo import normal

VR = sm.SlicedScoreMatchingVR()


class Siren(nn.Module):
    """Sines of 30 z; ``kept`` of the first layer's waves is cut from the graph."""

    def __init__(self, outputs: int, kept: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(2, 32), nn.Linear(32, outputs)
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        z = torch.sin(30 * self.first(x))
        z = (1 - self.kept) * z + self.kept * z.detach()
        return self.last(torch.sin(z)).squeeze(1)


def points(spread: float, dtype: torch.dtype) -> Tensor:
    return spread * normal(64, 2, generator=torch.Generator().manual_seed(0)).to(dtype)


def loss_and_gradient(model: nn.Module, x: Tensor, make: Any, **kwargs: Any) -> list[Tensor]:
    loss = VR(make(model, **kwargs), x, generator=torch.Generator().manual_seed(1))
    weight = next(model.parameters())
    return [loss.detach(), torch.autograd.grad(loss.mean(), weight)[0]]


@pytest.mark.parametrize("make", [LogDensityField, VectorField])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 100.0, 1000.0])
def test_waves_between_points_are_no_cut(spread: float, dtype: torch.dtype, make: Any) -> None:
    """From a spread of 100 on they were refused as cut from the graph, in double precision, too."""
    model = Siren(1 if make is LogDensityField else 2).to(dtype)
    x = points(spread, dtype)
    found = loss_and_gradient(model, x, make)
    truth = loss_and_gradient(
        model.double(), x.double(), make, route="reverse", check_smoothness=False
    )
    for a, b in zip(found, truth):
        error = (a.double() - b).abs().max() / b.abs().max()
        # The last digit of a phase 30 spread is so much of a wave.
        assert error < (1e-10 if dtype == torch.float64 else 1e-5 * max(1.0, spread))
    assert_close(found[0], truth[0].to(dtype), 1e-2)


@pytest.mark.parametrize("make", [LogDensityField, VectorField])
def test_phases_that_single_precision_does_not_resolve(make: Any) -> None:
    model = Siren(1 if make is LogDensityField else 2)
    with pytest.raises(WrongDerivativeError, match="too large for the frequencies"):
        VR(make(model), points(1e6, torch.float32))
    x = points(1e6, torch.float64)
    found = loss_and_gradient(model.double(), x, make)
    truth = loss_and_gradient(model, x, make, route="reverse", check_smoothness=False)
    for a, b in zip(found, truth):
        assert (a - b).abs().max() < 1e-7 * b.abs().max()


@pytest.mark.parametrize("kept", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_waves_that_are_cut_from_the_graph(dtype: torch.dtype, kept: float) -> None:
    """Parts short enough for the quadrature tell a cut from an oscillation."""
    model = Siren(1, kept).to(dtype)
    with pytest.raises(WrongDerivativeError, match="cut from the graph"):
        VR(lambda x: model(x) - 0.5 * (x / 1000).square().sum(1), points(1000.0, dtype))

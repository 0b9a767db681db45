"""Objectives that subtract values at close points, which must be of one model and have digits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm

OBJECTIVES = [sm.FiniteDifferenceSSM(), sm.NoiseContrastive()]

BY_CLASS = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)


def network(first: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def points(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(16, 3, generator=torch.Generator().manual_seed(0)).to(dtype)


@BY_CLASS
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_a_spectral_norm_that_advances(objective: sm.Objective, norm: object) -> None:
    """Moved points had other weights than the points: a loss of 0.03 was -238."""
    model = network(norm(nn.Linear(3, 8)))  # type: ignore[operator]
    with pytest.raises(
        ValueError, match=r"the same (answer|values) at every call .*call model\.eval\(\)"
    ):
        objective(model, points())
    assert objective(model.eval(), points()).isfinite().all()


@BY_CLASS
def test_batch_normalisation_in_training_mode(objective: sm.Objective) -> None:
    model = network(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8)))
    with pytest.raises(ValueError, match="must treat every point by itself"):
        objective(model, points())


class Centred(nn.Module):
    """Couples the points of a batch, or returns other values at every call."""

    def __init__(self, by_call: bool) -> None:
        super().__init__()
        self.layer, self.by_call, self.calls = nn.Linear(3, 8), by_call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layer(x * self.calls if self.by_call else x - x.mean(0))
        return out


@BY_CLASS
@pytest.mark.parametrize("by_call", [True, False])
def test_a_refused_model_is_refused_again(objective: sm.Objective, by_call: bool) -> None:
    """`FiniteDifferenceSSM` refused the second kind once and the first never."""
    model = network(Centred(by_call))
    for _ in range(5):
        with pytest.raises(ValueError, match=r"the same values at every call|treat every point"):
            objective(model, points())


@BY_CLASS
def test_points_that_are_coupled_outside_training_mode(objective: sm.Objective) -> None:
    """`NoiseContrastive` looked at modules in training mode only."""
    layer = nn.Linear(3, 8)
    for model in (network(Centred(False)).eval(), lambda x: layer(x - x.mean(0)).tanh().sum(-1)):
        with pytest.raises(ValueError, match="must treat every point by itself"):
            objective(model, points())


class Counting(nn.Module):
    """A linear layer that counts its calls in a buffer, without an effect on its values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layer(x)
        return out


@BY_CLASS
def test_a_model_that_counts_its_calls(objective: sm.Objective) -> None:
    assert objective(network(Counting()), points()).isfinite().all()


@BY_CLASS
def test_lazy_layers_need_points_first(objective: sm.Objective) -> None:
    """They draw their weights at the first call, and were taken for random models."""
    model = network(nn.LazyLinear(8))
    with pytest.raises(ValueError, match=r"got lazy layers .* model\(x\)"):
        objective(model, points())
    model(points())
    assert objective(model, points()).isfinite().all()


@BY_CLASS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused(objective: sm.Objective, dtype: torch.dtype) -> None:
    """The losses were rounding errors, divided by the square of the step."""
    model = network(nn.Linear(3, 8))
    with (
        torch.autocast("cpu", dtype),
        pytest.raises(ValueError, match="single precision or better, got mixed precision"),
    ):
        objective(model, points())
    with pytest.raises(ValueError, match=f"got points in {dtype} and values in {dtype}"):
        objective(model.to(dtype), points(dtype))

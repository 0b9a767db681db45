"""Models whose points depend on points before them in the batch are refused by every loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from scorematching import VectorField
from scorematching.evaluation import score_matching_loss
from scorematching.samplers import start, target_of
from tests.models_zoo import normal

X = normal(8, 2, 2, generator=torch.Generator().manual_seed(0))
COUPLES = r"every point by itself.*batch_first"

LOSSES = {
    "exact": sm.ScoreMatching(),
    "sliced": sm.SlicedScoreMatchingVR(),
    "denoising": sm.DenoisingScoreMatching(0.3),
    "differences": sm.FiniteDifferenceSSM(),
    "smoothing": sm.LocalCurvatureSmoothing(),
}


class Recurrent(nn.Module):
    """A score network, or a log-density, of sequences ``(N, T, D)``."""

    def __init__(self, is_density: bool, batch_first: bool) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.GRU(2, 2, batch_first=batch_first).double()
        self.is_density = is_density

    def forward(self, x: Tensor) -> Tensor:
        score = self.net(x)[0] - x
        return score.square().sum((1, 2)) - x.square().sum((1, 2)) if self.is_density else score


def field(is_density: bool, batch_first: bool) -> Any:
    network = Recurrent(is_density, batch_first)
    return network if is_density else VectorField(network)


@pytest.mark.parametrize("points", [2, 8])
@pytest.mark.parametrize("is_density", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_time_along_the_axis_of_points_is_refused(loss: str, is_density: bool, points: int) -> None:
    """The first points have their values in a smaller batch, too; the losses were wrong numbers."""
    g = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=COUPLES):
        LOSSES[loss](field(is_density, batch_first=False), X[:points], g)


@pytest.mark.parametrize("is_density", [True, False])
@pytest.mark.parametrize("loss", ["sliced", "denoising", "differences"])
def test_time_along_an_axis_of_its_own_is_accepted(loss: str, is_density: bool) -> None:
    g = torch.Generator().manual_seed(0)
    LOSSES[loss](field(is_density, batch_first=True), X, g)


@pytest.mark.parametrize("points", [3, 8])
def test_a_small_part_in_single_precision_is_refused(points: int) -> None:
    """Beside a large quadratic the other points change values by less than two percent."""
    network, x = Recurrent(is_density=True, batch_first=False).float(), X[:points].float()
    density = sm.LogDensityField(lambda x: network(x) - 2 * x.square().sum((1, 2)))
    with pytest.raises(ValueError, match=COUPLES):
        sm.SlicedScoreMatchingVR()(density, x, torch.Generator().manual_seed(0))


def test_contrasts_evaluations_and_chains_refuse_it() -> None:
    coupled = field(is_density=True, batch_first=False)
    with pytest.raises(ValueError, match=COUPLES):
        sm.NoiseContrastive()(coupled, X)
    with pytest.raises(ValueError, match=COUPLES):
        score_matching_loss(coupled, X)
    with pytest.raises(ValueError, match=COUPLES):
        start(target_of(coupled), X)


CONTEXTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of as many rows": lambda x, context: x * context,
    "of the first rows": lambda x, context: x * context[: len(x)],
}


@pytest.mark.parametrize("how", CONTEXTS)
@pytest.mark.parametrize("loss", ["sliced", "denoising", "differences"])
def test_a_context_of_each_row_is_no_coupling(loss: str, how: str) -> None:
    context, g = normal(8, 2, 2, generator=torch.Generator().manual_seed(1)), torch.Generator()
    network = Recurrent(is_density=False, batch_first=True)
    LOSSES[loss](VectorField(lambda x: CONTEXTS[how](network(x), context)), X, g)


def test_coupled_points_with_a_context_are_refused() -> None:
    """A model that takes no smaller batch is evaluated with another first point."""
    context = normal(8, 2, 2, generator=torch.Generator().manual_seed(1))
    network = Recurrent(is_density=False, batch_first=False)
    with pytest.raises(ValueError, match=COUPLES):
        sm.DenoisingScoreMatching(0.3)(VectorField(lambda x: network(x) * context), X)


def test_a_denoiser_may_change_from_call_to_call() -> None:
    """By a schedule in an attribute: the loss takes one evaluation, and compares none."""
    network, calls = Recurrent(is_density=False, batch_first=True), 0

    def annealed(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return network(x) * (1 + 0.1 * calls)

    assert sm.DenoisingScoreMatching(0.3)(VectorField(annealed), X).isfinite().all()


class ActNorm(nn.Module):
    """A layer that standardises the first points it is called with, as in Glow, and a density."""

    def __init__(self) -> None:
        super().__init__()
        self.location = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
        self.register_buffer("initialised", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.initialised:
            with torch.no_grad():
                self.location.copy_(x.mean(0))
                self.initialised.fill_(True)
        return (x - self.location).sin().sum((1, 2))


def test_weights_that_the_first_points_set_are_no_coupling() -> None:
    """The error was that of batch normalisation, whose advice leaves these weights unset."""
    model, loss, v = ActNorm(), sm.SlicedScoreMatchingVR(), torch.ones_like(X)
    with pytest.raises(ValueError, match=r"ActNorm.*call it once before, in training mode"):
        loss.loss(sm.LogDensityField(model), X, v)
    with torch.no_grad():
        model(X)
    mean = X.mean(0)
    fixed = sm.LogDensityField(lambda x: (x - mean).sin().sum((1, 2)))
    found = loss.loss(sm.LogDensityField(model), X, v)
    torch.testing.assert_close(found, loss.loss(fixed, X, v), rtol=0, atol=1e-12)

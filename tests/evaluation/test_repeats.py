"""Models in training mode are refused by everything that evaluates or samples them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scorematching import LogDensityField, SlicedScoreMatchingVR, VectorField
from scorematching.distributions import Gaussian
from scorematching.evaluation import (
    Fixed,
    LogZEstimate,
    NormalPixels,
    ais_log_z,
    compare,
    decoder_log_likelihood,
    feature_moments,
    importance_bracket,
    importance_log_likelihood,
    importance_log_z,
    kernel_stein_discrepancy,
    ksd_test,
    log_likelihood,
    score_matching_loss,
)
from scorematching.samplers import anneal, langevin, start, target_of

NORMAL = Gaussian(torch.zeros(2), torch.eye(2))
LAYERS = {"dropout": lambda: nn.Dropout(0.5), "norm": lambda: nn.BatchNorm1d(8)}
LOG_Z = LogZEstimate(0.0, 0.0, 1e4, 10_000)


class Density(nn.Module):
    """A log-density with a layer that behaves differently in training."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), layer, nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1) - 0.5 * x.square().sum(-1)


CALLS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "importance": lambda f, x: importance_log_z(f, NORMAL, 100),
    "importance, limited": lambda f, x: importance_log_z(f, NORMAL, 100, max_memory=2**24),
    "ais": lambda f, x: ais_log_z(f, NORMAL, 20, 3),
    "likelihood": lambda f, x: log_likelihood(f, x, LOG_Z),
    "ksd": lambda f, x: kernel_stein_discrepancy(f, x),
    "ksd_test": lambda f, x: ksd_test(Fixed(f), x, num_bootstrap=9),
    "loss": lambda f, x: score_matching_loss(f, x),
    "compare": lambda f, x: compare(NORMAL, f, x),
    "compare, sliced": lambda f, x: compare(NORMAL, f, x, SlicedScoreMatchingVR()),
    "mala, hmc": lambda f, x: start(target_of(f), x),
    "langevin": lambda f, x: langevin.step(x, lambda z: target_of(f)(z)[1], 0.1),
    "langevin, field": lambda f, x: langevin.step(x, LogDensityField(f).score, 0.1),
    "annealed": lambda f, x: anneal(lambda z, sigma: target_of(f)(z)[1], x, [1.0], 0.1, 1),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_training_mode_is_refused(call: Callable[..., Any], layer: str) -> None:
    torch.manual_seed(0)
    density, x = Density(LAYERS[layer]()), torch.randn(40, 2)
    with pytest.raises(ValueError, match=r"the model must .*model\.eval\(\)"):
        call(density, x)
    call(density.eval(), x)


@pytest.mark.parametrize("max_memory", [None, 2**20])
@pytest.mark.parametrize("layer", LAYERS)
def test_feature_networks_in_training_mode_are_refused(layer: str, max_memory: int | None) -> None:
    """Distances were those of other features, and batch normalisation was updated by the images."""
    torch.manual_seed(0)
    network, images = nn.Sequential(nn.Linear(2, 8), LAYERS[layer]()), torch.randn(40, 2)
    before = [b.clone() for b in network.buffers()]
    with pytest.raises(ValueError, match=r"the model must .*model\.eval\(\)"):
        feature_moments(network, images, max_memory=max_memory)
    assert all(torch.equal(a, b) for a, b in zip(before, network.buffers(), strict=True))
    feature_moments(network.eval(), iter(images.split(8)), max_memory=max_memory)


@pytest.mark.parametrize("layer", LAYERS)
def test_decoders_in_training_mode_are_refused(layer: str) -> None:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(2, 8), LAYERS[layer](), nn.Linear(8, 3))
    options = {"observation": NormalPixels(), "num_chains": 4, "num_steps": 3}
    with pytest.raises(ValueError, match=r"the model must .*model\.eval\(\)"):
        decoder_log_likelihood(decoder, torch.randn(5, 3), 2, **options)
    decoder_log_likelihood(decoder.eval(), torch.randn(5, 3), 2, **options)


@pytest.mark.parametrize("layer", LAYERS)
def test_decoders_in_training_mode_are_refused_around_modes(layer: str) -> None:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(2, 8), LAYERS[layer](), nn.Tanh(), nn.Linear(8, 3))

    def starts(x: Tensor) -> Tensor:
        return torch.zeros(1, len(x), 2)

    def both() -> None:
        importance_log_likelihood(decoder, torch.randn(5, 3), starts, NormalPixels(), 100)

    with pytest.raises(ValueError, match=r"the model must .*model\.eval\(\)"):
        both()
    with pytest.raises(ValueError, match=r"the model must .*model\.eval\(\)"):
        importance_bracket(decoder, 5, 2, torch.zeros(()), starts, NormalPixels(), 100)
    decoder.eval()
    both()


def test_a_context_of_as_many_rows_as_points_is_accepted() -> None:
    context = torch.randn(40, 2)
    log_likelihood(lambda x: NORMAL(x - context), torch.randn(40, 2), LOG_Z)


def test_a_single_point_is_evaluated() -> None:
    """It has no other first point."""
    x = torch.tensor([[3.0, 4.0]])
    assert score_matching_loss(VectorField(lambda x: -x), x).mean == 12.5 - 2


def test_the_check_leaves_the_model_as_it_was() -> None:
    density = Density(nn.BatchNorm1d(8))
    before = [b.clone() for b in density.buffers()]
    with pytest.raises(ValueError, match="every point by itself"):
        log_likelihood(density, torch.randn(40, 2), LOG_Z)
    assert all(torch.equal(a, b) for a, b in zip(before, density.buffers(), strict=True))


def test_chains_may_follow_scores_of_random_batches() -> None:
    """Stochastic gradient Langevin dynamics; the check draws no random numbers of the chain's."""
    network, x = nn.Linear(2, 2), torch.zeros(40, 2)
    langevin.step(x, lambda z: -z + torch.randn_like(z), 0.1)
    torch.manual_seed(0)
    quiet = langevin.step(x, network, 0.1)[0]
    torch.manual_seed(0)
    assert torch.equal(langevin.step(x, network.eval(), 0.1)[0], quiet)


def test_long_chains_are_checked_at_few_steps() -> None:
    calls = 0

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return super().forward(x)

    network, x = Counted(2, 2), torch.zeros(40, 2)
    for _ in range(1000):
        x, _ = langevin.step(x, network, 1e-3)
    assert calls == 1000 + 4 * 10  # at steps 1, 2, 4 ... 512

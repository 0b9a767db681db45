"""Models in training mode are refused by everything that evaluates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scorematching import SlicedScoreMatchingVR
from scorematching.distributions import Gaussian
from scorematching.evaluation import (
    Fixed,
    LogZEstimate,
    NormalPixels,
    ais_log_z,
    compare,
    decoder_log_likelihood,
    importance_log_z,
    kernel_stein_discrepancy,
    ksd_test,
    log_likelihood,
    score_matching_loss,
)

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
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_training_mode_is_refused(call: Callable[..., Any], layer: str) -> None:
    torch.manual_seed(0)
    density, x = Density(LAYERS[layer]()), torch.randn(40, 2)
    with pytest.raises(ValueError, match=r"the model must .*model\.eval\(\)"):
        call(density, x)
    call(density.eval(), x)


@pytest.mark.parametrize("layer", LAYERS)
def test_decoders_in_training_mode_are_refused(layer: str) -> None:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(2, 8), LAYERS[layer](), nn.Linear(8, 3))
    options = {"observation": NormalPixels(), "num_chains": 4, "num_steps": 3}
    with pytest.raises(ValueError, match=r"the model must .*model\.eval\(\)"):
        decoder_log_likelihood(decoder, torch.randn(5, 3), 2, **options)
    decoder_log_likelihood(decoder.eval(), torch.randn(5, 3), 2, **options)


def test_a_context_of_as_many_rows_as_points_is_accepted() -> None:
    context = torch.randn(40, 2)
    log_likelihood(lambda x: NORMAL(x - context), torch.randn(40, 2), LOG_Z)


def test_the_check_leaves_the_model_as_it_was() -> None:
    density = Density(nn.BatchNorm1d(8))
    before = [b.clone() for b in density.buffers()]
    with pytest.raises(ValueError, match="every point by itself"):
        log_likelihood(density, torch.randn(40, 2), LOG_Z)
    assert all(torch.equal(a, b) for a, b in zip(before, density.buffers(), strict=True))

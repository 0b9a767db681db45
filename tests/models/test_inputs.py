"""Models refuse points of another dtype or shape in words, not with an error of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import scorematching as sm

MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLPDensity": lambda: sm.models.MLPDensity(4, hidden=(8,)),
    "ScoreNetwork": lambda: sm.models.ScoreNetwork(4, hidden=(8,)),
    "NICE": lambda: sm.models.NICE(4, hidden=(8,)),
    "DKEF": lambda: sm.models.DKEF(4, num_inducing=5, width=4),
    "GeneralisedGaussian": lambda: sm.models.GeneralisedGaussian(4),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 4).double(), r"dtype of the model, torch.float32, got torch.float64"),
        (torch.zeros(3, 4).long(), r"got torch.int64; .*x.to\(torch.float32\)"),
        (torch.zeros(3, 1, 2, 2), r"shape \(N, 4\).*got \(3, 1, 2, 2\).*flatten"),
        (torch.zeros(3, 1), r"shape \(N, 4\).*got \(3, 1\)"),
        (torch.zeros(3, 5), r"shape \(N, 4\).*got \(3, 5\)"),
    ],
)
def test_points_of_another_kind_are_refused(name: str, x: torch.Tensor, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        MODELS[name]()(x)


def test_objectives_pass_the_message_on() -> None:
    model: Any = MODELS["MLPDensity"]()
    with pytest.raises(TypeError, match="dtype of the model"):
        sm.SlicedScoreMatchingVR()(model, torch.randn(3, 4).double())
    loss = sm.SlicedScoreMatchingVR()(model.double(), torch.randn(3, 4).double())
    assert loss.shape == (3,)


def test_half_precision_still_works_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert MODELS["ScoreNetwork"]()(torch.zeros(3, 4).bfloat16()).shape == (3, 4)


def test_widths_and_activations_of_another_kind_are_refused() -> None:
    """As errors of Python they named neither the argument nor what it must be."""
    wrong: Any
    for wrong in (64, None, "64"):
        for make in (sm.models.MLPDensity, sm.models.ScoreNetwork, sm.models.NICE):
            with pytest.raises(TypeError, match=r"hidden must be a sequence .* units is \(64,\)"):
                make(2, hidden=wrong)
    assert sm.models.MLPDensity(2, hidden=np.array([3])).net[0].out_features == 3  # type: ignore[arg-type]
    for wrong in (nn.SiLU(), torch.tanh, "tanh"):
        with pytest.raises(TypeError, match=r"activation must make a layer .* such as nn.SiLU"):
            sm.models.MLPDensity(2, activation=wrong)


def test_no_outputs_are_refused() -> None:
    """None of them was taken for as many as inputs."""
    with pytest.raises(ValueError, match="every width must be at least 1, got 0"):
        sm.models.ConditionalMLP(2, 3, outputs=0)
    assert sm.models.ConditionalMLP(2, 3)(torch.ones(4, 2), torch.ones(4, 3)).shape == (4, 2)


def test_classes_of_pixels_are_refused() -> None:
    decoder = nn.Linear(2, 4)
    wrong: Any
    for wrong in (sm.models.BernoulliPixels, "bernoulli"):
        with pytest.raises(TypeError, match=r"observation must be .*; pass BernoulliPixels\(\)"):
            sm.models.VAE(nn.Linear(4, 4), decoder, wrong, 2)
        with pytest.raises(TypeError, match=r"observation must be .*; pass BernoulliPixels\(\)"):
            sm.evaluation.decoder_log_likelihood(decoder, torch.ones(3, 4), 2, wrong)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda model: model,
    "DataParallel": nn.DataParallel,
    "AveragedModel": torch.optim.swa_utils.AveragedModel,
    "both": lambda model: nn.DataParallel(torch.optim.swa_utils.AveragedModel(model)),
    "partial": partial,
    "forward": lambda model: model.forward,
    "call": lambda model: model.__call__,
}


@pytest.mark.parametrize("how", WRAPPED)
@pytest.mark.parametrize("name", ["MLPDensity", "GeneralisedGaussian"])
def test_likelihoods_of_unnormalised_models_are_refused(name: str, how: str) -> None:
    """Their losses fall without end, since the constant is left out."""
    loss, x = sm.MaximumLikelihood(), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="MaximumLikelihood needs a normalised model"):
        loss(WRAPPED[how](MODELS[name]()), x)
    assert loss(WRAPPED[how](MODELS["NICE"]()), x).isfinite().all()

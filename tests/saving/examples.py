"""One object of every class that can be saved, and what it answers, for two processes.

``python -m tests.saving.examples FOLDER`` loads all models below a folder and writes their answers.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import scorematching as sm
from scorematching.estimators.density.bases.flow import has_flows
from scorematching.models import (
    DKEF,
    NICE,
    VAE,
    WAE,
    BernoulliPixels,
    ConditionalMLP,
    GeneralisedGaussian,
    ImplicitVAE,
    MLPDensity,
    NormalPixels,
    ScoreNetwork,
)
from scorematching.models.dkef import FeatureNetworks


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _trained(model: nn.Module) -> nn.Module:
    """Every weight away from its initial value."""
    g = generator()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return model


def _dkef() -> nn.Module:
    model = DKEF(3, 7, 4, 5, base=GeneralisedGaussian(3), distances="differences", as_released=True)
    model.alpha.copy_(torch.linspace(-1, 1, 7))
    return model.double()


def _images() -> nn.Module:
    encoder = nn.Sequential(
        nn.Unflatten(1, (1, 3, 1)),
        nn.Conv2d(1, 4, (3, 1), padding=(1, 0), bias=False),
        nn.BatchNorm2d(4),
        nn.GELU("tanh"),
        nn.Flatten(),
        nn.LayerNorm(12),
        nn.Linear(12, 2),
    )
    return WAE(encoder, nn.Linear(2, 3), NormalPixels(-0.5), 2, ScoreNetwork(2, (6,)), lam=3.0)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLPDensity(3, (8, 5), lambda: nn.Softplus(beta=2.0)),
    "linear": lambda: MLPDensity(3, ()),
    "score": lambda: ScoreNetwork(3, (6,), activation=nn.Tanh).eval(),
    "features": lambda: FeatureNetworks(3, 2, 4),
    "nice": lambda: NICE(3, (6, 4), 3, "logistic").requires_grad_(False),
    "dkef": _dkef,
    "wae": lambda: _images().eval(),
    "vae": lambda: VAE(nn.Linear(3, 4), nn.Linear(2, 3), BernoulliPixels(), 2),
    "ivae": lambda: ImplicitVAE(
        ConditionalMLP(4, 3, (5,), 2), nn.Linear(2, 3), BernoulliPixels(), 2, noise_dim=4
    ),
    "stack": lambda: nn.Sequential(MLPDensity(3, (4,)), nn.Unflatten(0, (-1, 1))).double(),
}


def _columns(num: int = 60) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(num, 3))
    x[:, 1] += 0.5 * x[:, 0] ** 2
    return x


def _density(model: str, base: Any, num: int = 120, **more: Any) -> Any:
    settings = {"max_steps": 20, "hidden": (8,), "num_inducing": 10, "num_importance": 500}
    estimator = sm.DensityEstimator(model, base=base, random_state=0, **{**settings, **more})
    return estimator.fit(_columns(num))


def _frame() -> Any:
    """A data frame with a constant and a dependent column."""
    x = _columns()
    columns = {"a": x[:, 0], "b": x[:, 1], "both": x[:, 0] + x[:, 1], "one": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = sm.DensityEstimator("none", sm.SlicedScoreMatching(sm.Gaussian()), base="kde")
        return estimator.fit(pd.DataFrame(columns))


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "stein": lambda: sm.SteinScoreEstimator("imq").fit(_columns()),
    "spectral": lambda: sm.SpectralScoreEstimator(bandwidth=2.0).fit(_columns()),
    "exp-family": lambda: sm.KernelExpFamilyEstimator().fit(_columns()),
    "nystrom": lambda: sm.KernelExpFamilyEstimator(num_inducing=9, random_state=1).fit(_columns()),
    "nu": lambda: sm.KernelExpFamilyEstimator(method="nu").fit(_columns()),
    "sliced": lambda: sm.SlicedScoreEstimator((8,), max_steps=9, random_state=0).fit(_columns()),
    "gaussian": lambda: _density("none", "gaussian"),
    "student-t": lambda: _density("none", ["student-t", "kde", "mixture"]),
    "mlp": lambda: _density("mlp", "gaussian", calibrate=False),
    "dkef": lambda: _density("dkef", "gaussian", calibrate=False),
    "nice": lambda: _density("nice", "auto", objective="mle"),
    "frame": _frame,
}
if has_flows():
    ESTIMATORS["maf"] = lambda: _density("none", ["maf"], 60)
    ESTIMATORS["nsf"] = lambda: _density("none", ["nsf"], 60)


@cache
def estimator(name: str) -> Any:
    return ESTIMATORS[name]()


def model(name: str) -> nn.Module:
    return _trained(MODELS[name]())


def answers(fitted: Any) -> dict[str, np.ndarray]:
    """What an object returns at fixed points, by method."""
    if isinstance(fitted, nn.Module):
        return _of_module(fitted)
    return _of_estimator(fitted)


def _of_module(fitted: Any) -> dict[str, np.ndarray]:
    like = next(fitted.parameters())
    x = torch.rand(6, 3, generator=generator(), dtype=torch.float64).to(like.dtype)
    with torch.no_grad():
        if isinstance(fitted, (VAE, ImplicitVAE, WAE)):
            values = {
                "encode": fitted.encode(x, generator()),
                "sample": fitted.sample(4, generator()),
                "likelihood": fitted.log_likelihood(torch.ones(6, 2), x),
            }
        else:
            values = {"call": fitted(x)}
    return {name: value.numpy() for name, value in values.items()}


def _of_estimator(fitted: Any) -> dict[str, np.ndarray]:
    x: Any = np.random.default_rng(1).normal(size=(6, fitted.n_features_in_))
    if hasattr(fitted, "feature_names_in_"):
        x[:, 2:] = np.stack([x[:, 0] + x[:, 1], np.ones(6)], 1)
        x = pd.DataFrame(x, columns=fitted.feature_names_in_)
    found = {"gradient": fitted.grad_log_density(x)}
    if hasattr(fitted, "score_samples"):
        found["log_density"] = fitted.score_samples(x)
    if hasattr(fitted, "sample"):
        found["sample"] = np.asarray(fitted.sample(5, random_state=0))
        found["outlying"] = fitted.decision_function(x)
    return found


def assert_refused(make: Callable[[], Any], message: str, parent: Path) -> None:
    """Saving raises TypeError and leaves nothing below the folder."""
    with pytest.raises(TypeError, match=message):
        sm.save(make(), parent / "refused")
    assert list(parent.iterdir()) == []


def main(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            np.savez(folder / f"{path.name}.npz", **answers(sm.load(path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

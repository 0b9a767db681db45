"""Functions with ``max_memory=``, each as a function of that limit, for `benchmarks.memory`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import scorematching as sm
from scorematching.distributions import Gaussian
from scorematching.evaluation.fid.distances import (
    feature_moments,
    frechet_distance,
    kernel_distance,
)
from scorematching.evaluation.log_z.annealed import ais_log_z
from scorematching.evaluation.log_z.importance import importance_log_z

Call = Callable[[int | None], Any]
"""A function of a budget."""

Estimators = dict[str, Callable[[], Any]]


def calls(points: int, dim: int) -> dict[str, Call]:
    """The functions with a budget, each at so many points."""
    x = torch.randn(points, dim, generator=_generator())
    density = sm.models.MLPDensity(dim=dim, hidden=(128, 128), generator=_generator())
    small = x[:, :4].double()
    return {
        **_losses(density, x),
        **_tests_of_fit(density, x[:1000]),
        **_normalising_constants(density, x),
        **_features(x[: max(64, points // 4)]),
        **_inference(x[:, :6]),
        **dict(_fits(small)),
        **dict(_queries(small.numpy())),
    }


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _losses(density: Any, x: Tensor) -> dict[str, Call]:
    dim, evaluate = x.shape[1], sm.evaluation
    network = sm.VectorField(sm.models.ScoreNetwork(dim=dim, hidden=(128,)))
    normal = Gaussian(torch.zeros(dim), torch.eye(dim))
    log_z = importance_log_z(normal, normal, num=1000, generator=_generator())
    return {
        "score_matching_losses, density": lambda m: evaluate.score_matching_losses(
            density, x, max_memory=m
        ),
        "score_matching_losses, network": lambda m: evaluate.score_matching_losses(
            network, x, max_memory=m
        ),
        "fisher_divergence": lambda m: (
            evaluate.fisher_divergence(density, lambda x: -x, x, max_memory=m).mean
        ),
        "compare": lambda m: evaluate.compare(density, network, x, max_memory=m).difference.mean,
        "log_likelihood": lambda m: evaluate.log_likelihood(density, x, log_z, max_memory=m).mean,
    }


def _tests_of_fit(density: Any, x: Tensor) -> dict[str, Call]:
    fixed, ksd = sm.evaluation.Fixed(density), sm.evaluation.kernel_stein_discrepancy
    options: dict[str, Any] = {"num_bootstrap": 99, "bandwidth": 3.0}
    return {
        "kernel_stein_discrepancy": lambda m: ksd(density, x, max_memory=m),
        "ksd_test": lambda m: (
            sm.evaluation.ksd_test(fixed, x, generator=_generator(), max_memory=m, **options).null
        ),
        "stein_thin": lambda m: sm.evaluation.stein_thin(
            x, density, 10, bandwidth=3.0, max_memory=m
        ),
    }


def _normalising_constants(density: Any, x: Tensor) -> dict[str, Call]:
    dim = x.shape[1]
    normal = Gaussian(torch.zeros(dim), torch.eye(dim))
    chains: dict[str, Any] = {"num_chains": len(x) // 4, "num_steps": 4, "num_leapfrog": 2}
    return {
        "importance_log_z": lambda m: (
            importance_log_z(
                density, normal, 2 * len(x), len(x), generator=_generator(), max_memory=m
            ).log_z
        ),
        "ais_log_z": lambda m: (
            ais_log_z(density, normal, generator=_generator(), max_memory=m, **chains).log_z
        ),
    }


def _features(x: Tensor) -> dict[str, Call]:
    weights = torch.randn(x.shape[1], 600, generator=_generator()), torch.randn(600, 40)

    def network(images: Tensor) -> Tensor:
        return (images @ weights[0]).tanh() @ weights[1]

    features = network(x)
    return {
        "feature_moments": lambda m: feature_moments(network, x, 256, max_memory=m).mean,
        "frechet_distance": lambda m: frechet_distance(features, features + 1, max_memory=m),
        "kernel_distance": lambda m: kernel_distance(x, x + 1, 100, max_memory=m).mean,
    }


def _inference(x: Tensor) -> dict[str, Call]:
    model = sm.inference.models.Gaussian(x.shape[1])
    exact, sliced = sm.ScoreMatching(), sm.SlicedScoreMatchingVR()
    return {
        f"inference.fit, {name}": partial(_standard_errors, model, x, objective)
        for name, objective in (("exact", exact), ("sliced", sliced))
    }


def _standard_errors(model: Any, x: Tensor, objective: Any, max_memory: int | None) -> Tensor:
    found = sm.inference.fit(model, x, objective, generator=_generator(), max_memory=max_memory)
    return torch.tensor([float(value) for value in found.bse.values()])


def _fits(x: Tensor) -> Iterator[tuple[str, Call]]:
    """The fits of estimators, with the score at some points as their result."""
    few, some = x[:300].numpy(), x[:1000].numpy()
    kernel, density = sm.KernelExpFamilyEstimator, sm.DensityEstimator
    steps: dict[str, Any] = {"max_steps": 3, "validate_every": 2, "patience": None}
    kinds: dict[str, tuple[Callable[[], Any], Any]] = {
        "Stein": (sm.SteinScoreEstimator, some),
        "spectral": (sm.SpectralScoreEstimator, some),
        "kernel, Tikhonov": (partial(kernel, num_inducing=None), few),
        "kernel, inducing": (partial(kernel, num_inducing=50, random_state=0), some),
        "kernel, nu": (partial(kernel, method="nu", bandwidth=2.0), some),
        "sliced": (
            partial(sm.SlicedScoreEstimator, hidden=(64,), batch_size=256, random_state=0, **steps),
            some,
        ),
        "density, kde": (partial(density, "none", base="kde", random_state=0), few),
        "density, mixture": (partial(density, "none", base="mixture", random_state=0), few),
        "density, tilt": (partial(density, base="kde", max_steps=3, random_state=0), few),
        "graphical": (partial(sm.inference.GraphicalModel, penalty=0.1), some),
    }
    for name, (make, points) in kinds.items():
        yield f"{name}.fit", Fit(make, points)


@dataclass(frozen=True)
class Fit:
    """The fit of an estimator, with the score at some points as its result.

    Attributes:
        make: the estimator.
        X: points ``(N, D)``, of which it makes a copy.
    """

    make: Callable[[], Any]
    X: Any

    def __call__(self, max_memory: int | None) -> Any:
        """Fit, and evaluate."""
        return self.make().fit(self.X, max_memory=max_memory).grad_log_density(self.X[:8])

    @property
    def copied(self) -> int:
        """Bytes of the copy of the points."""
        return int(self.X.nbytes)


def _queries(X: Any) -> Iterator[tuple[str, Call]]:
    """The methods of estimators that take points."""
    kinds = {
        "Stein": sm.SteinScoreEstimator(),
        "spectral": sm.SpectralScoreEstimator(),
        "kernel": sm.KernelExpFamilyEstimator(random_state=0),
        "density": sm.DensityEstimator("none", base="kde", random_state=0),
    }
    for name, estimator in kinds.items():
        estimator.fit(X[:300])
        for way in ("grad_log_density", "score_samples", "score"):
            if hasattr(estimator, way):
                yield f"{name}.{way}", partial(_query, getattr(estimator, way), X)


def _query(method: Callable[..., Any], X: Any, max_memory: int | None) -> Any:
    return method(X, max_memory=max_memory)

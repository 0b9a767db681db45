"""Score estimators on distributions with a known score: `python -m benchmarks.estimators`.

Fits every estimator to N points and measures its Fisher divergence to the truth at new points.
Writes the numbers, and docs/estimators.md with its pictures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import Tensor

from benchmarks.harness.command import Docs, Output, Smoke, command_line, run_command
from benchmarks.harness.provenance import stamp
from benchmarks.pages import estimators as estimators_page
from scorematching import distributions, parzen_sigma
from scorematching.distributions import Distribution
from scorematching.estimators import (
    KernelExpFamilyEstimator,
    ScoreEstimator,
    SlicedScoreEstimator,
    SpectralScoreEstimator,
    SteinScoreEstimator,
)
from scorematching.fields import VectorField
from scorematching.kernels import RBF, median_bandwidth

Row = dict[str, Any]
Array = np.ndarray

DIMS, NUMS, SEEDS, QUERIES = (2, 8, 20), (100, 300, 1000), (0, 1, 2), 1000
TUNING = 300
"""Points on which bandwidth and penalty are searched."""
FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Bandwidths of that search, in units of the median distance."""


def gaussian(dim: int) -> Distribution:
    """A normal distribution; neighbouring coordinates have correlation 0.5."""
    distance = torch.arange(dim)[:, None] - torch.arange(dim)
    return distributions.Gaussian(torch.zeros(dim), 0.5 ** distance.abs())


def mixture(dim: int) -> Distribution:
    """Three round components of different widths."""
    means = torch.zeros(3, dim)
    means[0, 0], means[1, 0], means[2, 1] = 2.0, -2.0, 3.0
    return distributions.GaussianMixture([0.5, 0.3, 0.2], means, [1.0, 0.5, 0.25])


LAWS: dict[str, Callable[[int], Distribution]] = {
    "gaussian": gaussian,
    "mixture": mixture,
    "banana": lambda dim: distributions.Banana(dim, curvature=0.5, scale=1.5),
    "funnel": lambda dim: distributions.Funnel(dim, scale=1.0),
}


class KDE(ScoreEstimator):
    """A kernel density estimate with normal windows, and its score in closed form.

    ``sum_j p_j (x_j - x) / h^2``, p the weights of the windows at x. The bandwidth maximises the
    held-out likelihood; it is the geometric mean over five folds.
    """

    def _fit(self, x: Tensor, max_memory: int | None) -> None:
        folds = [torch.arange(len(x)) % 5 == k for k in range(5)]
        widths = [parzen_sigma(x[~fold], x[fold]) for fold in folds]
        self.samples_, self.bandwidth_ = x, float(np.exp(np.mean(np.log(widths))))

    def _field(self) -> VectorField:
        kernel, samples = RBF(self.bandwidth_), self.samples_

        def score(x: Tensor) -> Tensor:
            total = kernel(x, samples).sum(-1, keepdim=True).clamp(min=1e-300)
            return kernel.grad_sum(x, samples) / total

        return VectorField(score)


def tuned(
    estimator: ScoreEstimator, grid: dict[str, list[float]], **fast: Any
) -> Callable[[Array], Any]:
    """A fit whose bandwidth and penalty minimise the held-out score-matching loss.

    Args:
        estimator: what to fit after the search.
        grid: penalties to try.
        fast: settings for the search only.
    """

    def fit(X: Array) -> ScoreEstimator:
        part = X[:TUNING]
        median = float(median_bandwidth(torch.as_tensor(X)))
        scales = {"bandwidth": [median * factor for factor in FACTORS]}
        trial = clone(estimator).set_params(**fast)
        search = GridSearchCV(trial, {**scales, **grid}, cv=3, refit=False).fit(part)
        best: ScoreEstimator = clone(estimator).set_params(**search.best_params_).fit(X)
        return best

    return fit


def contenders(seed: int, smoke: bool) -> dict[str, Callable[[Array], Any]]:
    """Fits by name, with default settings and with searched ones."""
    steps, few = (50, 1) if smoke else (2000, 4)
    etas, masses = [1e-3, 1e-2, 1e-1, 1.0][:few], [0.9, 0.95, 0.99, 0.999][-few:]
    lams = [1e-3, 1e-2, 1e-1, 1.0][:few]
    kef = KernelExpFamilyEstimator(random_state=seed)
    return {
        "KDE": KDE().fit,
        "Stein": SteinScoreEstimator().fit,
        "Stein, tuned": tuned(SteinScoreEstimator(), {"eta": etas}),
        "spectral": SpectralScoreEstimator().fit,
        "spectral, tuned": tuned(SpectralScoreEstimator(), {"mass": masses}),
        "KEF": clone(kef).fit,
        "KEF, tuned": tuned(kef, {"lam": lams}, num_inducing=10),
        "KEF, nu-method": KernelExpFamilyEstimator(method="nu").fit,
        "sliced": SlicedScoreEstimator(max_steps=steps, random_state=seed).fit,
    }


class Case(NamedTuple):
    """One cell of the table."""

    law: str
    dim: int
    num: int
    seed: int


def cases(smoke: bool) -> Iterator[Case]:
    """All cells; a few for ``--smoke``."""
    dims, nums, seeds = ((2,), (60,), (0, 1)) if smoke else (DIMS, NUMS, SEEDS)
    for law in LAWS:
        for dim in dims:
            for num in nums:
                yield from (Case(law, dim, num, seed) for seed in seeds)


def run(case: Case, smoke: bool) -> list[Row]:
    """Fit and evaluate every estimator on one sample."""
    law = LAWS[case.law](case.dim).to(dtype=torch.float64)
    generator = torch.Generator().manual_seed(case.seed)
    x, q = law.sample(case.num, generator), law.sample(QUERIES, generator)
    truth = law.score(q).numpy()
    zero = 0.5 * np.mean(np.sum(truth**2, axis=1))
    rows = []
    for name, fit in contenders(case.seed, smoke).items():
        began = time.perf_counter()
        fitted = fit(x.numpy())
        fitted_at = time.perf_counter()
        error = fitted.grad_log_density(q.numpy()) - truth
        ended = time.perf_counter()
        divergence = 0.5 * np.mean(np.sum(error**2, axis=1))
        rows.append(
            {
                **case._asdict(),
                "estimator": name,
                "fisher": float(divergence),
                "relative": float(divergence / zero),
                "fit_seconds": fitted_at - began,
                "query_seconds": ended - fitted_at,
            }
        )
    return rows


def measure(smoke: Smoke = False, output: Output = None, docs: Docs = None) -> dict[str, Any]:
    """Compare score estimators with the truth; write the numbers and docs/estimators.md."""
    command = command_line("python -m benchmarks.estimators", measure, locals())
    torch.set_num_threads(1)
    document = {
        **stamp(command),
        "seeds": list((0, 1) if smoke else SEEDS),
        "queries": QUERIES,
        "tuning_points": TUNING,
        "rows": [],
    }
    for case in cases(smoke):
        document["rows"] += run(case, smoke)
        print(*case, flush=True)
    path = output or _default("benchmarks/results/estimators.json", smoke)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    page = estimators_page.write(document, docs or _default("docs", smoke))
    print(f"written to {path} and {page}")
    return document


def _default(path: str, smoke: bool) -> Path:
    """Where results go; those of a smoke test to another folder than the committed ones."""
    return Path("runs/smoke") / path if smoke else Path(path)


if __name__ == "__main__":
    run_command(measure, "python -m benchmarks.estimators --smoke")

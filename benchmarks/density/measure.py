"""One table with one seed: every method's likelihood, loss, samples and time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor

from benchmarks.density.peers import Fit, peers
from benchmarks.density.tables import TABLES, split
from scorematching.distributions import Distribution
from scorematching.errors import ScoreMatchingError
from scorematching.estimators.density import DensityEstimator
from scorematching.estimators.density.bases.flow import has_flows
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.losses import held_out_losses
from scorematching.estimators.density.scaling import Inverse, robust_whiten

WITHOUT_FLOWS = ["gaussian", "student-t", "kde", "mixture"]
LOSS_ROWS, LOSS_ENTRIES = 300, 6000
CLASSIFIER_ROWS, FEW_ROWS, DRAWS = 1000, 200, 12

Row = dict[str, Any]


def cell(name: str, seed: int, settings: Row) -> Row:
    """The results of every method on one table with one seed."""
    train, test = (torch.as_tensor(part) for part in split(TABLES[name], seed))
    rows: dict[str, Row] = {}
    for method, base in {"ours": "auto", "ours, no flows": WITHOUT_FLOWS}.items():
        if base == "auto" and not has_flows():
            continue
        options = {"base": base, **settings}
        rows[method] = caught(ours, train, test, seed, options)
    for method, fit in peers().items():
        rows[method] = caught(theirs, fit, train, test, seed)
    points = {"train": len(train), "test": len(test), "columns": train.shape[1]}
    return {"table": name, "seed": seed, "points": points, "methods": rows}


def caught(measure: Callable[..., Row], *arguments: Any) -> Row:
    """The numbers of a method, or why there are none."""
    try:
        return measure(*arguments)
    except (ValueError, RuntimeError, ArithmeticError, ScoreMatchingError) as error:
        return {"failure": f"{type(error).__name__}: {error}"[:200]}


def theirs(fit: Fit, train: Tensor, test: Tensor, seed: int) -> Row:
    """One of the peers."""
    start = time.process_time()
    density = fit(train, seed)
    seconds = time.process_time() - start
    return measured(density, train, test, seed) | {"seconds": seconds}


def ours(train: Tensor, test: Tensor, seed: int, settings: Row) -> Row:
    """`DensityEstimator`."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X has columns without a density")
        estimator = DensityEstimator(random_state=seed, **settings).fit(train.numpy())
    seconds = time.process_time() - start
    fitted = Fitted(estimator, train)
    about = {"tilt_size": estimator.tilt_size_, "log_z_error": estimator.log_z_standard_error_}
    parts = {name: round(weight, 3) for name, weight in estimator.weights_.items()}
    found = measured(fitted, train, test, seed)
    return found | {"seconds": seconds, "parts": parts} | about


class Fitted(Distribution):
    """A fitted estimator as a distribution of its table."""

    def __init__(self, estimator: DensityEstimator, like: Tensor) -> None:
        """Keep the estimator."""
        super().__init__(like.shape[1], like=like)
        self.estimator = estimator
        # So that held_out_losses finds out whether there are flows.
        self.base = estimator.density_

    def _log_density(self, x: Tensor) -> Tensor:
        scale = self.estimator.scaling_
        return self.base._log_density(scale(x)) + scale.log_abs_det(x)

    def _score(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.estimator.grad_log_density(x.numpy()))

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        return torch.as_tensor(self.estimator.sample(n, seed))


def measured(density: Distribution, train: Tensor, test: Tensor, seed: int) -> Row:
    """Log-likelihood and loss at test rows, and how well samples pass for test rows."""
    with torch.no_grad():
        log_density = density(test)
    whiten = robust_whiten(train)
    rows = test[: max(20, min(LOSS_ROWS, LOSS_ENTRIES // test.shape[1]))]
    white = Transformed(density, Inverse(whiten))
    losses = held_out_losses(white, whiten(rows)).detach()
    generator = torch.Generator().manual_seed(seed)
    draws = 1 if len(test) > FEW_ROWS else DRAWS
    aucs = [classifier_auc(density.sample(len(test), generator), test, seed) for _ in range(draws)]
    return {
        "log_density": log_density.mean().item(),
        "log_density_error": log_density.std().item() / len(test) ** 0.5,
        "loss": losses.mean().item(),
        "loss_error": losses.std().item() / len(losses) ** 0.5,
        "auc": sum(aucs) / draws,
        "at_points": [round(value, 4) for value in log_density.tolist()],
    }


def classifier_auc(samples: Tensor, test: Tensor, seed: int) -> float:
    """How well a random forest tells samples from test rows it has not seen; 0.5 is not at all."""
    parts = [part[:CLASSIFIER_ROWS].numpy() for part in (samples, test)]
    x, y = np.concatenate(parts), np.repeat([0, 1], [len(part) for part in parts])
    keep = np.isfinite(x).all(1)
    x, y = np.clip(x[keep], -1e9, 1e9), y[keep]
    forest = RandomForestClassifier(100, min_samples_leaf=3, random_state=seed)
    folds = int(min(5, np.bincount(y).min()))
    chance = cross_val_predict(forest, x, y, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(y, chance))

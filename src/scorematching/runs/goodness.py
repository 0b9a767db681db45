"""Whether held-out rows look like samples of a model: a classifier, and Stein's discrepancy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.evaluation import KSDTest, ksd_test
from scorematching.evaluation.ksd.hypotheses import Fixed
from scorematching.runs.modelled import standardised_score
from scorematching.runs.space import Space

_TREES, _FOLDS, _MIN_ROWS, _MAX_ROWS = 100, 5, 10, 1000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TwoSample:
    """How well a classifier tells rows from samples.

    Attributes:
        auc: chance that it finds a row more row-like than a sample; 0.5 for equal distributions.
        null_error: standard deviation of the AUC if both have one distribution.
        count: number of rows, and of samples.

    Example:
        >>> print(TwoSample(0.58, 0.03, 200))
        AUC 0.58, where 0.50 +- 0.03 is expected of a perfect model (n=200)
    """

    auc: float
    null_error: float
    count: int

    @property
    def z(self) -> float:
        """Standard errors above one half."""
        return (self.auc - 0.5) / self.null_error

    def __str__(self) -> str:
        expected = f"0.50 +- {self.null_error:.2f} is expected of a perfect model"
        return f"AUC {self.auc:.2f}, where {expected} (n={self.count})"


def two_sample(rows: Array, samples: Array, seed: int) -> TwoSample | None:
    """Train a random forest to tell rows from as many samples, by cross-validation.

    Args:
        rows: held-out, ``(N, D)``, with noise where columns are rounded; 1,000 at most are used.
        samples: of the model, ``(N, D)`` or more.
        seed: of the forest and of its folds.

    Returns:
        The result; None for fewer than ten rows.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> two_sample(x[:100], x[100:] + 3, seed=0).auc > 0.9
        True
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    count = min(len(rows), len(samples), _MAX_ROWS)
    if count < _MIN_ROWS:
        return None
    order = np.random.default_rng(seed).permutation(len(rows))[:count]
    points = np.concatenate([rows[order], samples[:count]])
    deviation = points.std(0)
    # Forests are in single precision.
    points = (points - points.mean(0)) / np.where(deviation > 0, deviation, 1)
    labels = np.repeat([1, 0], count)
    forest = RandomForestClassifier(_TREES, min_samples_leaf=3, random_state=seed)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    chances = cross_val_predict(forest, points, labels, cv=folds, method="predict_proba")[:, 1]
    # Mann and Whitney's variance of the AUC of two equal samples.
    null_error = math.sqrt((2 * count + 1) / (12 * count**2))
    return TwoSample(float(roc_auc_score(labels, chances)), null_error, count)


def stein_test(model: Any, space: Space, x: Tensor, seed: int) -> KSDTest | None:
    """Test held-out rows against the score of a model, in the space of the baselines.

    Args:
        model: a fitted estimator.
        space: of the modelled columns.
        x: held-out rows ``(N, K)``; 1,000 at most are used.
        seed: of the bootstrap.

    Returns:
        The test; None for fewer than ten rows, or where a score is not finite.
    """
    if len(x) < _MIN_ROWS:
        return None
    z = space.z(some_rows(x, _MAX_ROWS))
    scores = whitened_score(model, space, z)
    if not bool(scores.isfinite().all()):
        return None
    generator = torch.Generator().manual_seed(seed)
    return ksd_test(Fixed(scores), z, generator=generator)


def whitened_score(model: Any, space: Space, z: Tensor) -> Tensor:
    """The score of a model at whitened points, ``(N, K)``."""
    with torch.no_grad():
        return space.field(standardised_score(model)).score(z)

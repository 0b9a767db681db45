"""A fitted estimator as a model of arrays of its modelled columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scorematching.runs.space import Space
from scorematching.types import Vector

Array = NDArray[np.float64]
_BATCH_SIZE = 4096


class ModelledScore:
    """The score of an estimator at its modelled columns.

    Args:
        model: a fitted `DensityEstimator` or `SlicedScoreEstimator`.
        space: of the modelled columns.
    """

    def __init__(self, model: Any, space: Space) -> None:
        self.model, self.space = model, space

    def grad_log_density(self, x: Array) -> Array:
        """The score, ``(N, K) -> (N, K)``."""
        std = self.space.scaling.std
        return _batched(lambda s: standardised_score(self.model)(s) / std, self._s(x))

    def _s(self, x: Any) -> Tensor:
        return self.space.scaling(torch.tensor(np.asarray(x), dtype=torch.float64))


class ModelledDensity(ModelledScore):
    """The normalised log-density of a `DensityEstimator` at its modelled columns, and its score."""

    def score_samples(self, x: Array) -> Array:
        """The log-density, ``(N, K) -> (N,)``."""
        constant = self.space.scaling.log_abs_det(self._s(x)[:1])
        return _batched(lambda s: self.model.density_(s) + constant, self._s(x))


def modelled(model: Any, space: Space) -> ModelledScore:
    """A fitted estimator as a model of its modelled columns, with a density if it has one."""
    kind = ModelledDensity if hasattr(model, "density_") else ModelledScore
    return kind(model, space)


def standardised_score(model: Any) -> Vector:
    """The score of a fitted estimator as a function of standardised rows, in double precision."""
    if hasattr(model, "density_"):
        score: Vector = model.density_.score
        return score
    network = model.network_
    return lambda s: network(s.to(next(network.parameters()).dtype)).double()


def _batched(function: Vector, s: Tensor) -> Array:
    with torch.no_grad():
        return torch.cat([function(part) for part in s.split(_BATCH_SIZE)]).numpy()

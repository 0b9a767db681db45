"""What every estimator shares: arrays in, arrays out, by scikit-learn's conventions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from scorematching.evaluation.losses import score_matching_losses
from scorematching.fields import Field

Estimator = TypeVar("Estimator", bound="ScoreEstimator")
Array = NDArray[np.float64]

_BATCH_SIZE = 1024


class ScoreEstimator(BaseEstimator, ABC):
    """A score learned from samples: ``fit(X)``, then ``grad_log_density(X)``.

    A subclass stores its arguments under their own names, as scikit-learn asks, and says two
    things: `_fit` learns from points and leaves what it learned in attributes that end in an
    underscore; `_field` makes of these a field that can be asked for scores. It may have the
    arguments ``device``, where tensors live (None for the CPU), and ``random_state``, from which
    `_generator` makes its noise.

    Attributes:
        n_features_in_: D, number of coordinates of the points it was fitted to.

    Example:
        >>> from sklearn.exceptions import NotFittedError
        >>> from scorematching.estimators import SteinScoreEstimator
        >>> estimator: ScoreEstimator = SteinScoreEstimator()
        >>> try:
        ...     estimator.grad_log_density([[0.0, 0.0]])
        ... except NotFittedError:
        ...     print("fit first")
        fit first
    """

    n_features_in_: int

    _dtype: torch.dtype = torch.float64
    """Type to compute in: double for linear algebra; networks may say single."""

    def fit(self: Estimator, X: ArrayLike, y: Any = None) -> Estimator:
        """Learn the score of the law that the points were drawn from.

        Args:
            X: points ``(N, D)``, with N >= 2.
            y: ignored; pipelines pass it.

        Returns:
            The estimator itself.

        Raises:
            ValueError: if there are fewer than two points, they are all the same, or some are not
                finite.
        """
        x = self._tensor(X, reset=True)
        check_distinct(x)
        self._fit(x)
        return self

    def grad_log_density(self, X: ArrayLike) -> Array:
        """The estimated score at points, ``(N, D) -> (N, D)``.

        Args:
            X: points ``(N, D)``.

        Returns:
            The gradient of the log-density at each of them, ``(N, D)``.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the points have another dimension than those of `fit`, or some are not
                finite.
        """
        x, field = self._queries(X), self._field()
        with torch.no_grad():
            return to_array(torch.cat([field.score(batch) for batch in x.split(_BATCH_SIZE)]))

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """How well the estimate fits held-out points: minus the exact score-matching loss.

        ``-mean(tr grad s + 0.5 |s|^2)``: larger is better. Up to a constant of the law of the
        points it is minus the Fisher divergence, so it can choose between estimators, in
        ``GridSearchCV`` say, although the true score is unknown. Cost: D derivatives of the score.

        Args:
            X: points ``(N, D)`` that the estimator was not fitted to.
            y: ignored.

        Returns:
            The mean over the points.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the points have another dimension than those of `fit`, or some are not
                finite.
        """
        x = self._queries(X)
        return -score_matching_losses(self._field(), x).double().mean().item()

    @abstractmethod
    def _fit(self, x: Tensor) -> None:
        """Learn from checked points ``(N, D)``; leave it in attributes that end in ``_``."""

    @abstractmethod
    def _field(self) -> Field:
        """The fitted score."""

    def _queries(self, X: ArrayLike) -> Tensor:
        """Points to evaluate at, checked against those of `fit`."""
        check_is_fitted(self)
        return self._tensor(X, reset=False)

    def _tensor(self, X: ArrayLike, reset: bool) -> Tensor:
        """Finite points ``(N, D)`` in the estimator's dtype and on its device."""
        least = 2 if reset else 1
        checked = validate_data(
            self, X, reset=reset, dtype=[np.float64, np.float32], ensure_min_samples=least
        )
        # A copy: a fitted estimator keeps its samples, and the array is the caller's to change.
        return torch.tensor(checked, dtype=self._dtype, device=getattr(self, "device", None))

    def _generator(self) -> torch.Generator:
        """A generator that follows from ``random_state``."""
        device = getattr(self, "device", None) or "cpu"
        return generator_of(getattr(self, "random_state", None), device)


def generator_of(random_state: Any, device: str) -> torch.Generator:
    """A generator that follows from a seed or a `numpy.random.RandomState`."""
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return torch.Generator(device).manual_seed(seed)


class LogDensityMixin:
    """What estimators with a log-density, at least up to a constant, can do besides."""

    def score_samples(self: Any, X: ArrayLike) -> Array:
        """The estimated log-density at points, ``(N, D) -> (N,)``; the class says how normalised.

        Args:
            X: points ``(N, D)``.

        Returns:
            Log-densities ``(N,)``: larger is likelier.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the points have another dimension than those of `fit`, or some are not
                finite.
        """
        x = self._queries(X)
        with torch.no_grad():
            return to_array(torch.cat([self._log_density(b) for b in x.split(_BATCH_SIZE)]))

    def _log_density(self: Any, x: Tensor) -> Tensor:
        """The fitted log-density at checked points, ``(N, D) -> (N,)``."""
        value: Tensor = self._field().log_density(x)
        return value


def check_distinct(x: Tensor) -> None:
    """Require two points that differ."""
    if bool((x == x[:1]).all()):
        raise ValueError(
            f"X must hold points that differ, got {len(x)} copies of one point; a law on a single "
            "point has no score"
        )


def to_array(x: Tensor) -> Array:
    """A tensor as an array of doubles."""
    return x.double().cpu().numpy()

"""What all estimators share: scikit-learn's methods, arrays in and arrays out."""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from scorematching._checks import check_device
from scorematching._memory import in_chunks
from scorematching.estimators.inputs import as_table, other_names
from scorematching.evaluation.losses import score_matching_losses
from scorematching.fields import Field

Estimator = TypeVar("Estimator", bound="ScoreEstimator")
Array = NDArray[np.float64]

_BATCH_SIZE = 1024


class ScoreEstimator(BaseEstimator, ABC):
    """A score learned from samples: ``fit(X)``, then ``grad_log_density(X)``.

    A subclass stores its arguments under their own names, as scikit-learn requires and dataclasses
    do. It defines `_fit`, which learns from points and stores the result in attributes that end in
    an underscore, and `_field`, which returns the fitted score. It may have the arguments
    ``device`` (None for the CPU) and ``random_state``, for `_generator`.

    Methods that take points raise NotFittedError before `fit`, and ValueError if points are not
    finite or have another dimension than those of `fit`.

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
    """Type to compute in: double for linear algebra; networks may use single."""

    def fit(
        self: Estimator, X: ArrayLike, y: Any = None, max_memory: int | None = None
    ) -> Estimator:
        """Learn the score of the distribution of the points; returns the estimator itself.

        Args:
            X: points ``(N, D)``, with N >= 2.
            y: ignored.
            max_memory: bytes that may be taken beside the points, which is measured: what can be
                evaluated in parts is, and what cannot is refused before it is allocated. None is
                without limit.

        Raises:
            ValueError: if there are fewer than two points, they are all the same, some are not
                finite, or max_memory is too small.
        """
        before = dict(vars(self))
        try:
            x = self._tensor(X, reset=True)
            check_distinct(x)
            # Not by decorators, whose frames would count in the stack levels of warnings.
            with torch.inference_mode(False), torch.enable_grad():
                self._fit(x, max_memory)
        except BaseException:  # an earlier fit stays as it was
            self.__dict__ = before
            raise
        return self

    def grad_log_density(self, X: ArrayLike, max_memory: int | None = None) -> Array:
        """The estimated score, the gradient of the log-density, at points: ``(N, D) -> (N, D)``.

        Args:
            X: points ``(N, D)``.
            max_memory: bytes that may be taken beside estimator, points and result, which is
                measured; None evaluates 1024 points at a time.
        """
        x, field = self._queries(X), self._field()
        with torch.no_grad():
            return to_array(in_chunks(field.score, [x], _BATCH_SIZE, max_memory))

    def score(self, X: ArrayLike, y: Any = None, max_memory: int | None = None) -> float:
        """Minus the exact score-matching loss of held-out points, ``-mean(tr grad s + 0.5 |s|^2)``.

        Larger is better. Up to a constant of the data it is minus the Fisher divergence, so that it
        can select estimators, for example in ``GridSearchCV``, although the true score is unknown.
        Cost: D derivatives of the score.

        Args:
            X: points ``(N, D)`` that the estimator was not fitted to.
            y: ignored.
            max_memory: as for `grad_log_density`.
        """
        x = self._queries(X)
        losses = score_matching_losses(self._field(), x, max_memory=max_memory)
        return -losses.double().mean().item()

    @abstractmethod
    def _fit(self, x: Tensor, max_memory: int | None) -> None:
        """Learn from checked points ``(N, D)``; store the result in attributes ending in ``_``."""

    @abstractmethod
    def _field(self) -> Field:
        """The fitted score."""

    def _queries(self, X: ArrayLike) -> Tensor:
        """Points to evaluate at, checked against those of `fit`."""
        check_is_fitted(self)
        return self._tensor(X, reset=False)

    def _tensor(self, X: ArrayLike, reset: bool) -> Tensor:
        """Finite points ``(N, D)`` in the estimator's dtype and on its device."""
        return self._place(self._validated(as_table(X), reset))

    def _validated(self, X: Any, reset: bool, finite: bool = True) -> NDArray[Any]:
        """An array ``(N, D)`` of numbers, by the checks of scikit-learn."""
        least, kinds = 2 if reset else 1, [np.float64, np.float32]
        limits = {"ensure_min_samples": least, "ensure_all_finite": finite}
        values: NDArray[Any] = validate_data(self, X, reset=reset, dtype=kinds, **limits)
        self._check_other_names(X, reset)
        return values

    def _check_other_names(self, X: Any, reset: bool) -> None:
        """Keep names of columns that are no text in `fit`, and compare those of later data frames.

        scikit-learn compares text alone, and takes columns called 0, 1, 2 in any order.
        """
        names = other_names(X)
        if reset:
            self._other_names = names
        known: list[str] = getattr(self, "_other_names", [])  # those saved earlier have none
        if names and known and names != known:
            same = sorted(names) == sorted(known)
            asked = f"have the columns of fit{' in their order' if same else ''}"
            shown = ", ".join(known[:5]), ", ".join(names[:5])
            raise ValueError(f"X must {asked}, {shown[0]}, got {shown[1]}; select them by name")

    def _place(self, values: NDArray[Any]) -> Tensor:
        """A copy in the estimator's dtype and on its device, since the caller may change X."""
        device = check_device(getattr(self, "device", None))
        native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
        return torch.tensor(native, dtype=self._dtype, device=device)

    def _generator(self, random_state: Any) -> torch.Generator:
        """A generator on the estimator's device, from a seed or a generator of numpy's."""
        if isinstance(random_state, np.random.Generator):
            seed = int(random_state.integers(2**31 - 1))
        else:
            try:
                seed = int(check_random_state(random_state).randint(2**31 - 1))
            except ValueError as error:
                raise ValueError(
                    "random_state must be None, an integer from 0 to 2**32 - 1, a "
                    "numpy.random.RandomState or a numpy.random.Generator, got "
                    f"{random_state!r}; try random_state=0"
                ) from error
        return torch.Generator(check_device(getattr(self, "device", None))).manual_seed(seed)


class LogDensityMixin:
    """`score_samples`, for estimators with a log-density, possibly up to a constant."""

    def score_samples(self: Any, X: ArrayLike, max_memory: int | None = None) -> Array:
        """The estimated log-density at points, ``(N, D) -> (N,)``: larger is likelier.

        Args:
            X: points ``(N, D)``.
            max_memory: as for `grad_log_density`.
        """
        x = self._queries(X)
        with torch.no_grad():
            return to_array(in_chunks(self._log_density, [x], _BATCH_SIZE, max_memory))

    def _log_density(self: Any, x: Tensor) -> Tensor:
        """The fitted log-density at checked points, ``(N, D) -> (N,)``."""
        value: Tensor = self._field().log_density(x)
        return value


def check_distinct(x: Tensor) -> None:
    """Require two points that differ."""
    if bool((x == x[:1]).all()):
        raise ValueError(
            f"X must hold points that differ, got {len(x)} copies of one point; the score of a "
            "single point is undefined"
        )


def to_array(x: Tensor) -> Array:
    """A tensor as an array of doubles."""
    return x.double().cpu().numpy()

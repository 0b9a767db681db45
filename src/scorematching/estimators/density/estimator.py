"""Density estimation for tables, with scikit-learn's methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from scorematching._checks import check_count
from scorematching.datasets import Compose, Standardise, Transform, Whiten
from scorematching.estimators.base import (
    Array,
    LogDensityMixin,
    ScoreEstimator,
    check_fraction,
    to_array,
)
from scorematching.estimators.density.learning import Settings, learn_dkef, learn_nice, objective_of
from scorematching.estimators.density.sampling import resample_and_move
from scorematching.evaluation import LogZEstimate, importance_log_z, score_matching_losses
from scorematching.evaluation.log_z.importance import check_effective
from scorematching.fields import Field, LogDensityField
from scorematching.models import DKEF, NICE
from scorematching.objectives import Objective

_BATCH_SIZE = 4096
_MIN_POINTS, _MAX_HELD_OUT = 4, 1000
_MIN_RATIO = 1e-6
"""Least ratio of the standard deviations of two combinations of standardised columns.

A table whose columns determine each other has no density, so such tables are refused.
"""


class DensityEstimator(LogDensityMixin, ScoreEstimator):
    """A log-density learned from a table, by score matching.

    Points are whitened, ``z = T(x)``, a model f of z is trained, and::

        log p(x)      = f(T(x)) - log Z + log |det J|,  J = dT/dx     score_samples
        grad log p(x) = J' grad f(T(x))                               grad_log_density
        -mean(tr grad^2 f + 0.5 |grad f|^2) at T(x)                   score

    `score` is computed in the whitened space, where it does not depend on the units of the
    columns. Compare it between settings, but not with estimators that do not whiten.

    The model is a deep kernel exponential family ("dkef"), whose log Z is estimated by importance
    sampling at first use, or a flow of additive couplings ("nice"), whose log Z is zero and whose
    samples are exact. Copies of a row stay together when points are held out. Rounded data have no
    density: add noise first (`scorematching.datasets.Dequantise`).

    Args:
        model: "dkef" or "nice".
        objective: what to minimise: "ssm-vr", "ssm", "sm", any `Objective`, or with "nice"
            also "mle".
        num_inducing: L, inducing points of DKEF; at most as many as there are training points.
        hidden: widths of the hidden layers of NICE's couplings.
        noise: standard deviation, in whitened units, of normal noise that is added to the data;
            the estimate is then the density of the noisy data, which is smoother.
        validation_fraction: share of the points, at most 1000 of them, that is held out to choose
            when to stop and the ridge penalty.
        max_steps: training steps, at most.
        batch_size: points per step.
        learning_rate: None is 0.01 for DKEF and 0.002 for NICE.
        patience: steps without a new least validation loss after which training stops.
        calibrate: after score matching, fit mean and variances of DKEF's base and the scale of its
            weights by likelihood: 2 D + 1 numbers. Score matching compares slopes, and may misjudge
            how much mass is in the centre and how much in the tails.
        num_importance: samples for log Z of DKEF.
        device: where tensors live, "cpu" or "cuda".
        random_state: seed or `numpy.random.RandomState`, for `fit`.
        verbose: above zero, shows a progress bar.

    Attributes:
        model_: the trained module, on whitened points, in double precision.
        whitening_: the map T, a `scorematching.datasets.Transform`.
        validation_loss_: the objective at the held-out points, for DKEF with an exact trace.
        n_steps_: training steps taken.
        log_z_: log of the integral of ``exp(f)`` in the whitened space.
        log_z_standard_error_: its standard error.
        n_features_in_: D.
        feature_names_in_: the columns, where X was a data frame.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal([1.0, 2.0], [0.1, 10.0], size=(200, 2))
        >>> density = DensityEstimator(num_inducing=20, max_steps=30, random_state=0).fit(X)
        >>> density.score_samples(X).shape, density.grad_log_density(X).shape
        ((200,), (200, 2))
    """

    def __init__(
        self,
        model: str = "dkef",
        objective: str | Objective = "ssm-vr",
        *,
        num_inducing: int = 100,
        hidden: Sequence[int] = (64, 64),
        noise: float = 0.0,
        validation_fraction: float = 0.1,
        max_steps: int = 500,
        batch_size: int = 200,
        learning_rate: float | None = None,
        patience: int = 200,
        calibrate: bool = True,
        num_importance: int = 100_000,
        device: str = "cpu",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        """Store the arguments."""
        self.model = model
        self.objective = objective
        self.num_inducing = num_inducing
        self.hidden = hidden
        self.noise = noise
        self.validation_fraction = validation_fraction
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.calibrate = calibrate
        self.num_importance = num_importance
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @property
    def log_z_(self) -> float:
        """Log of the integral of the unnormalised model; 0 for NICE."""
        return self._normaliser().log_z

    @property
    def log_z_standard_error_(self) -> float:
        """Standard error of `log_z_`."""
        return self._normaliser().standard_error

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Minus the exact score-matching loss of held-out points, in the whitened space.

        Args:
            X: points ``(N, D)`` that the estimator was not fitted to.
            y: ignored.

        Returns:
            ``-mean(tr grad^2 f + 0.5 |grad f|^2)`` at the whitened points; larger is better.
        """
        x = self._queries(X)
        return -score_matching_losses(self.model_, self.whitening_(x)).mean().item()

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Array:
        """Points drawn from the estimated density.

        Exact for NICE. For DKEF they are drawn from a pool of importance samples and moved by
        Hamiltonian Monte Carlo (`resample_and_move`): their distribution is right up to about one
        over the effective sample size of the pool.

        Args:
            n_samples: number of points.
            random_state: seed or `numpy.random.RandomState`.

        Returns:
            Points ``(n_samples, D)``.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the effective sample size of the pool is too small.
        """
        check_is_fitted(self)
        check_count(n_samples, "n_samples", "draw one point or more")
        generator = self._generator(random_state)
        if self._proposal is None:
            assert isinstance(self.model_, NICE)
            z = self.model_.sample(n_samples, generator)
        else:
            pool = max(self.num_importance, 10 * n_samples)
            z, log_z = resample_and_move(self.model_, self._proposal, n_samples, pool, generator)
            _check_effective(log_z)
        return to_array(self.whitening_.inverse(z))

    def _fit(self, x: Tensor) -> None:
        settings = self._settings()
        objective = objective_of(self.objective, self.model)
        self._check_points(x)
        generator = self._generator(self.random_state)
        self.whitening_ = _whitening(x)
        z_train, z_valid = map(self.whitening_, self._split(x, generator))
        learn = learn_dkef if self.model == "dkef" else learn_nice
        learned = learn(z_train, z_valid, objective, settings, generator)
        self.model_: DKEF | NICE = learned.model
        self.validation_loss_, self.n_steps_ = learned.validation_loss, learned.steps
        self._proposal = learned.proposal
        self._seed = generator.initial_seed()
        known = LogZEstimate(0.0, 0.0, math.inf, 1)
        self._log_z: LogZEstimate | None = known if self._proposal is None else None

    def _split(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Training and validation points, at random; copies of a point stay together."""
        distinct, which = x.unique(dim=0, return_inverse=True)
        n = max(1, round(self.validation_fraction * len(distinct)))
        n = min(n, _MAX_HELD_OUT, len(distinct) - 2)
        place = torch.randperm(len(distinct), generator=generator, device=x.device)[which]
        return x[place >= n], x[place < n]

    def _field(self) -> Field:
        return LogDensityField(lambda x: self.model_(self.whitening_(x)))

    def _log_density(self, x: Tensor) -> Tensor:
        estimate = self._normaliser()
        _check_effective(estimate)
        return self.model_(self.whitening_(x)) - estimate.log_z + self.whitening_.log_abs_det(x)

    def _normaliser(self) -> LogZEstimate:
        """Log Z, estimated at the first call."""
        check_is_fitted(self)
        if self._log_z is None:
            assert self._proposal is not None
            generator = torch.Generator(self.device).manual_seed(self._seed + 1)
            self._log_z = importance_log_z(
                self.model_, self._proposal, self.num_importance, _BATCH_SIZE, generator
            )
        return self._log_z

    def _settings(self) -> Settings:
        """The arguments of training, checked."""
        check_fraction(self.validation_fraction, "validation_fraction")
        return Settings(
            model=self.model,
            num_inducing=self.num_inducing,
            hidden=self.hidden,
            noise=self.noise,
            max_steps=self.max_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            calibrate=self.calibrate,
            num_importance=self.num_importance,
            progress=bool(self.verbose),
        )

    def _check_points(self, x: Tensor) -> None:
        count = len(x.unique(dim=0))
        if count < _MIN_POINTS:
            raise ValueError(
                f"X must hold {_MIN_POINTS} different points or more, got {count} with "
                f"n_samples = {len(x)}; some of them are held out"
            )
        if self.model == "nice" and x.shape[1] < 2:
            raise ValueError(
                'X must have two columns or more for model="nice", got n_features = 1; '
                'use model="dkef"'
            )


def _whitening(x: Tensor) -> Transform:
    """A map of points to mean 0 and covariance I that does not depend on units of the columns."""
    standardise = Standardise.fit(x)
    return Compose(standardise, Whiten.fit(standardise(x), symmetric=True, min_ratio=_MIN_RATIO))


def _check_effective(log_z: LogZEstimate) -> None:
    advice = (
        'raise num_importance, take more points or fewer columns, or use model="nice"; '
        "grad_log_density and score need no log_z_"
    )
    check_effective(log_z, name="log_z_", advice=advice)

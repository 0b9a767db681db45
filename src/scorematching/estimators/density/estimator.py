"""Density estimation for tables, with scikit-learn's methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from scorematching._checks import check_count, check_flag
from scorematching._memory import in_chunks, limited
from scorematching._random import normal
from scorematching._rows import some_rows
from scorematching.datasets import Compose, Standardise, Transform, Whiten
from scorematching.distributions import Distribution
from scorematching.estimators.base import Array, ScoreEstimator, to_array
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.copies import are_copies
from scorematching.estimators.density.gaps import Gaps
from scorematching.estimators.density.learning import learn_density
from scorematching.estimators.density.losses import held_out_losses, is_smooth
from scorematching.estimators.density.normaliser import Normaliser, bracket
from scorematching.estimators.density.refusals import (
    refuse_categories,
    refuse_far,
    refuse_few,
    refuse_missing,
    refuse_peaks,
    refuse_text,
    refuse_units,
)
from scorematching.estimators.density.scaling import Inverse, robust_standardise, robust_whiten
from scorematching.estimators.density.settings import check_settings, objective_of
from scorematching.estimators.density.table import Table, inspect
from scorematching.estimators.density.threads import threads_for
from scorematching.estimators.density.tilted import Tilted
from scorematching.estimators.inputs import as_table
from scorematching.fields import Field, LogDensityField
from scorematching.objectives import Objective

_BATCH_SIZE, _MAX_THRESHOLD_ROWS, _BRACKET_CHAINS = 4096, 10_000, 200


@dataclass(eq=False, repr=False)
class DensityEstimator(OutlierMixin, ScoreEstimator):
    """A normalised log-density learned from a table.

    Columns are standardised. A base q0 is a mixture of Gaussian, Student-t, kernel, mixture and
    flow estimates, stacked by cross-validated likelihood; score matching then learns a tilt t of
    whitened points z, whose size a is chosen by held-out likelihood and may be zero::

        log p = log q0 + a t - log Z                                  score_samples
        grad log p                                                    grad_log_density
        -mean(tr grad^2 log p + 0.5 |grad log p|^2) in z              score

    `score` is computed in the whitened space, where it does not depend on the units of the
    columns. Compare it between settings, but not with estimators that do not whiten.

    Constant columns, and columns that are linear functions of others, are set aside with a
    warning: the density is that of the others, and `sample` restores them. Values that are tied
    have no density, and the narrowest peaks on them would be the best: noise fills the gaps between
    them, in `fit` and in `score`, with a warning if a column has few values. ``dequantise=True``
    asks for it. Copies of a row stay together when points are held out.

    Args:
        model: the tilt: "mlp", a network; "dkef", a deep kernel exponential family; or "none".
            "nice" is a flow of additive couplings in place of base and tilt.
        objective: what to minimise: "ssm-vr", "ssm", "sm", such an `Objective`, or with "nice"
            any `Objective` and "mle".
        base: "auto"; one or several of "gaussian", "student-t", "kde", "mixture", "maf" and "nsf"
            (flows need the extra "flows"); or an object with ``log_prob`` or ``score_samples``
            and ``sample``, which is fitted to standardised points if it has ``fit`` and otherwise
            is a density of X as it is.
        num_inducing: L, inducing points of DKEF; at most as many as there are training points.
        hidden: widths of the hidden layers of "mlp" and of NICE's couplings.
        noise: standard deviation, in whitened units, of normal noise that is added to the data;
            the estimate is then the density of the noisy data, which is smoother.
        validation_fraction: share of the points that is held out for "nice".
        max_steps: training steps of the tilt, or of NICE, at most.
        batch_size: points per step.
        learning_rate: None is 0.01 for DKEF and 0.002 for the others.
        patience: steps without a new least validation loss after which training stops.
        calibrate: choose the size of the tilt by held-out likelihood; False takes it as it is.
        num_importance: samples for log Z of a tilted base.
        dequantise: True asks for uniform noise over the gaps of rounded and discrete columns;
            False adds it where values of different rows are tied, and warns.
        contamination: share of the training rows that `predict` calls unusual; of other rows it is
            more, since a density is higher at the rows it was fitted to.
        device: where tensors live, "cpu" or "cuda".
        random_state: seed, `numpy.random.RandomState` or `numpy.random.Generator`, for `fit`.
        verbose: above zero, reports progress; a function receives the lines.
        max_seconds: after which `fit` tries no further candidates and ends training; the one it
            is at is finished, and a warning says what was left out. None has no limit.

    Attributes:
        density_: the `Distribution` of the standardised columns.
        weights_: weights of the parts of the base, by name.
        tilt_size_: a; zero if the base stands alone.
        held_out_log_likelihood_: mean cross-validated log-density of the base, per row of X.
        scaling_: the map of modelled columns to standardised ones, the space of `density_`.
        whitening_: the map of modelled columns to z, a `scorematching.datasets.Transform`.
        validation_loss_: held-out loss of the tilt over that of the base, or that of NICE.
        n_steps_: training steps taken.
        history_: losses on the way, a list of `scorematching.training.Record`.
        log_z_: log of the integral of ``q0 exp(a t)``.
        log_z_standard_error_: its standard error.
        table_: columns that were set aside, discrete columns, repeated rows.
        offset_: threshold of `decision_function`.
        feature_names_in_: the columns, where X was a data frame.

    Example:
        >>> X = np.random.default_rng(0).normal([1.0, 2.0], [0.1, 10.0], size=(100, 2))
        >>> density = DensityEstimator("none", base="gaussian", random_state=0).fit(X)
        >>> density.score_samples(X).shape, density.grad_log_density(X).shape
        ((100,), (100, 2))
    """

    model: str = "mlp"
    objective: str | Objective = "ssm-vr"
    _: KW_ONLY
    base: Any = "auto"
    num_inducing: int = 100
    hidden: Sequence[int] = (64, 64)
    noise: float = 0.0
    validation_fraction: float = 0.1
    max_steps: int = 300
    batch_size: int = 200
    learning_rate: float | None = None
    patience: int = 60
    calibrate: bool = True
    num_importance: int = 10_000
    dequantise: bool = False
    contamination: float = 0.1
    device: str = "cpu"
    random_state: Any = None
    verbose: Any = 0
    max_seconds: float | None = None

    @property
    def log_z_(self) -> float:
        """Log of the integral of ``q0 exp(a t)``; zero without a tilt."""
        return self._normaliser().log_z

    @property
    def log_z_standard_error_(self) -> float:
        """Standard error of `log_z_`."""
        return self._normaliser().standard_error

    def log_z_bracket(self, random_state: Any = None) -> tuple[float, float]:
        """`log_z_` from below and from above, by annealing from the base and back.

        Args:
            random_state: seed, `numpy.random.RandomState` or `numpy.random.Generator`.

        Returns:
            A value that is too low on average and one that is too high; zeros without a tilt.
        """
        check_is_fitted(self)
        if not isinstance(self.density_, Tilted):
            return 0.0, 0.0
        generator = self._generator(random_state)
        samples = self.density_.sample(_BRACKET_CHAINS, generator)
        density = self.density_
        return bracket(density.log_weight, density.proposal, samples, generator)

    def score_samples(
        self,
        X: ArrayLike,
        max_memory: int | None = None,
        *,
        normalised: bool = True,
        return_error: bool = False,
    ) -> Any:
        """The estimated log-density at points, ``(N, D) -> (N,)``.

        Args:
            X: points ``(N, D)``.
            max_memory: bytes that may be taken beside estimator, points and result.
            normalised: subtract `log_z_`; False always works, and ranks rows just as well.
            return_error: return standard errors, too.

        Returns:
            Log-densities ``(N,)``: larger is likelier. With ``return_error`` also their standard
            errors ``(N,)``, which come from log Z and are the same for all rows.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the points have another dimension than those of `fit`, some are not
                finite, or log Z is not known well enough.
        """
        for name, value in (("normalised", normalised), ("return_error", return_error)):
            check_flag(value, name, "both are optional")
        values = self.unnormalised_log_density(X, max_memory)
        if normalised:
            self._check_normaliser()
            values = values - self.log_z_
        errors = np.full(len(values), self.log_z_standard_error_ if normalised else 0.0)
        return (values, errors) if return_error else values

    def unnormalised_log_density(self, X: ArrayLike, max_memory: int | None = None) -> Array:
        """``log q0 + a t`` at points, in the units of X, ``(N, D) -> (N,)``; needs no log Z."""
        s, log_det = self._standardised(X)
        with torch.no_grad():
            values = in_chunks(self.density_, [s], _BATCH_SIZE, max_memory)
        return to_array(values + self._normaliser().log_z + log_det)

    def grad_log_density(self, X: ArrayLike, max_memory: int | None = None) -> Array:
        """The gradient of the log-density, zero in columns set aside, ``(N, D) -> (N, D)``."""
        s, _ = self._standardised(X)
        scores = in_chunks(self.density_.score, [s], _BATCH_SIZE, max_memory)
        return to_array(self.table_.widen(scores / self.scaling_.std))

    def score(self, X: ArrayLike, y: Any = None, max_memory: int | None = None) -> float:
        """Minus the score-matching loss of held-out points, in the whitened space.

        Args:
            X: points ``(N, D)`` that the estimator was not fitted to.
            y: ignored.
            max_memory: bytes that may be taken beside estimator and points.

        Returns:
            ``-mean(tr grad^2 f + 0.5 |grad f|^2)`` of ``f = log p`` at the whitened points; larger
            is better. See `held_out_losses` for flows.

        Where the rows of `fit` had ties, noise over the gaps between the values is added first,
        always the same: at the values themselves the narrowest peaks would have the best score.

        Raises:
            ValueError: if the loss is still that of peaks narrower than 1e-6.
        """
        r = self._modelled(X)
        gaps: Gaps | None = getattr(self, "_gaps", None)  # those saved earlier have none
        if gaps is not None:
            r = gaps.fill(r, torch.Generator(r.device).manual_seed(0))
        density = Transformed(self.density_, Inverse(self._whiten))
        losses = held_out_losses(density, self.whitening_(r), max_memory)
        refuse_peaks(losses, self.table_)
        return -losses.mean().item()

    def decision_function(self, X: ArrayLike) -> Array:
        """`score_samples` less the threshold `offset_`: negative for unusual rows, ``(N,)``."""
        return self.unnormalised_log_density(X) - self._normaliser().log_z - self.offset_

    def predict(self, X: ArrayLike) -> Any:
        """-1 for unusual rows and 1 for the others, ``(N,)``."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """Points drawn from the estimated density.

        Args:
            n_samples: number of points.
            random_state: seed, `numpy.random.RandomState` or `numpy.random.Generator`.

        Returns:
            Points ``(n_samples, D)``, a data frame where `fit` was given one.
        """
        check_is_fitted(self)
        check_count(n_samples, "n_samples", "draw one point or more")
        s = self.density_.sample(n_samples, self._generator(random_state))
        x = to_array(self.table_.restore(self.scaling_.inverse(s)))
        return x if self._frame is None else self._frame(x, columns=self._columns)

    def fit(self, X: ArrayLike, y: Any = None, max_memory: int | None = None) -> DensityEstimator:
        """Learn the density.

        Args:
            X: points ``(N, D)``, an array or a data frame of numbers.
            y: ignored.
            max_memory: as for `ScoreEstimator.fit`.

        Returns:
            The estimator itself.

        Raises:
            ValueError: if X has categories, missing values or fewer than four different rows, or
                an argument is out of range.
        """
        super().fit(X, y, max_memory)
        is_frame = hasattr(X, "iloc") and hasattr(X, "columns")
        self._frame: Any = type(X) if is_frame else None
        self._columns: Any = list(cast("Any", X).columns) if is_frame else None
        return self

    def _fit(self, x: Tensor, max_memory: int | None) -> None:
        check_settings(self)
        with limited(max_memory, 'take a random subset, base="gaussian", or model="none"'):
            self._learn(x)

    def _learn(self, x: Tensor) -> None:
        objective = objective_of(self.objective, self.model)
        self.table_: Table = inspect(x, getattr(self, "feature_names_in_", None))
        refuse_few(len(x), self.table_, self.model)
        generator = self._generator(self.random_state)
        given = r = self.table_.reduce(x)
        rows, groups = r.unique(dim=0, return_inverse=True)
        groups = groups if are_copies(r) else torch.arange(len(r), device=r.device)
        # Values that repeat only because whole rows do are not rounded.
        self._gaps = Gaps.fit(r, None if self.dequantise or r.shape[1] == 1 else rows)
        self.table_.warn(self.dequantise, self._gaps.common, r)
        if self.dequantise or self._gaps.any:
            r = self._gaps.fill(r, generator)
        self.scaling_: Standardise = robust_standardise(r)
        s = self.scaling_(r)
        self._whiten: Whiten = robust_whiten(s)
        self.whitening_: Transform = Compose(self.scaling_, self._whiten)
        if self.noise:
            s = self._blurred(s, generator)
        with threads_for(s.numel()):
            learned = learn_density(
                self, s, groups, self.scaling_, self._whiten, objective, generator
            )
        self.density_: Distribution = learned.density
        self.weights_, self.tilt_size_ = learned.weights, learned.tilt_size
        self.validation_loss_, self.n_steps_ = learned.validation_loss, learned.steps
        self.history_ = learned.history
        log_det = self.scaling_.log_abs_det(s[:1]).item()
        self.held_out_log_likelihood_ = learned.held_out_log_likelihood + log_det
        rows = self.scaling_(some_rows(given, _MAX_THRESHOLD_ROWS))  # as `predict` sees them
        with torch.no_grad():
            values = torch.cat([self.density_(part) for part in rows.split(_BATCH_SIZE)])
        self.offset_ = float(np.quantile(to_array(values), self.contamination)) + log_det

    def _blurred(self, s: Tensor, generator: torch.Generator) -> Tensor:
        """Points with normal noise that is standard in whitened units."""
        eps = self._whiten.inverse(normal(s.shape, s, generator)) - self._whiten.mean
        return s + self.noise * eps

    def _tensor(self, X: ArrayLike, reset: bool) -> Tensor:
        X = as_table(X)
        refuse_categories(X)
        refuse_text(X)
        checked = self._validated(X, reset, finite=False)
        names = getattr(self, "feature_names_in_", None)
        refuse_missing(checked, names)
        if reset:
            refuse_units(checked, names)
        return self._place(checked)

    def _standardised(self, X: ArrayLike) -> tuple[Tensor, Tensor]:
        """Standardised modelled columns, and the log-determinant of that map at each row."""
        r = self._modelled(X)
        return self.scaling_(r), self.scaling_.log_abs_det(r)

    def _modelled(self, X: ArrayLike) -> Tensor:
        """The modelled columns of points."""
        x = self._queries(X)
        self.table_.warn_if_off(x)
        r = self.table_.reduce(x)
        refuse_far(self.scaling_(r), self.table_)
        return r

    def _field(self) -> Field:
        def log_density(x: Tensor) -> Tensor:  # the scores of some parts have no graph
            return self.density_(self.scaling_(self.table_.reduce(x)))

        return LogDensityField(log_density, check_smoothness=not is_smooth(self.density_))

    def _normaliser(self) -> Normaliser:
        check_is_fitted(self)
        found = self.density_
        return found.normaliser if isinstance(found, Tilted) else Normaliser.exact()

    def _check_normaliser(self) -> None:
        failure = self._normaliser().failure
        if failure is not None:
            raise ValueError(
                f"log_z_ must be known for a normalised log-density, got no estimate: {failure}; "
                'use score_samples(X, normalised=False) to rank rows, or model="none"; '
                "grad_log_density, score and predict work without it"
            )

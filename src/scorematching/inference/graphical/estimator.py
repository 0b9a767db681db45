"""Sparse graphical models as a scikit-learn estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from scorematching._checks import check_count, check_flag, check_positive, is_number
from scorematching._memory import in_chunks, limited
from scorematching.estimators.base import LogDensityMixin, ScoreEstimator, to_array
from scorematching.fields import VectorField
from scorematching.inference.graphical.calibration import loss_scale
from scorematching.inference.graphical.kinds import Weight, check_domain, find_kind
from scorematching.inference.graphical.path import Array, Path, follow, largest_penalty
from scorematching.inference.graphical.quadratic import Problem, Quadratic
from scorematching.inference.graphical.selection import (
    count_edges,
    extended_bic,
    held_out_losses,
    refit_all,
)
from scorematching.inference.graphical.solver import Control

Models = list[Tensor | None]


@dataclass(eq=False, repr=False)
class GraphicalModel(LogDensityMixin, ScoreEstimator):
    """A sparse graph of conditional dependences, by score matching with an l1 penalty.

    The log-density is ``-x^a' K x^a / (2 a) + eta' x^b / b``; i and j are joined by an edge where
    ``K_ij != 0``. The score-matching loss is quadratic in K and eta, so no normalising constant is
    needed, also where it is unknown, as on the positive orthant. ``K`` is symmetric; the diagonal
    and eta carry no penalty. Nothing forces K to be positive definite.

    Cost: for positive kinds N D^3, and memory for D^3 numbers.

    Args:
        kind: "gaussian" (a = b = 1, all points), "truncated" (the same on x >= 0), "exponential"
            (a = b = 1/2, x > 0) or "gamma" (a = 1/2, b = 0, x > 0).
        penalty: one penalty to fit with; None computes a path and selects from it.
        selection: "ebic" or "cv": how a penalty is selected from the path.
        ebic_gamma: between 0 (BIC) and 1 (few edges). The loss is scaled to that of a likelihood
            (`calibration`), which the penalty on the number of edges assumes.
        num_penalties: length of the path.
        min_penalty_ratio: smallest penalty of the path, relative to the largest.
        refit: estimate the edges that were found again without the penalty, which removes its bias.
            The selection compares models estimated in the same way. Models in which a node has more
            than ``N / (2 log D)`` neighbours are left out.
        diagonal_multiplier: factor, at least 1, of the diagonal of the quadratic form while edges
            are searched. It gives the problem a minimum where D > N. None is `default_multiplier`.
        fit_location: estimate eta; False sets it to zero.
        scale: divide columns by their standard deviations first. Results are in units of X.
        weight: h of generalised score matching for positive kinds: "log" for
            ``min(log(1 + x), cut)``, "x" for ``min(x, cut)``, "x^2" for ``min(x^2, cut)``; None is
            "log" for "truncated" and "x^2" for the others, whose score is infinite at zero: with
            the first two eta has an infinite variance there, and "gamma" finds edges that are not.
        cut: of the weight, in standard deviations if scale is True.
        cv: number of folds of cross-validation.
        tol: change of entries of K, relative to the largest, at which a fit has converged.
        max_iter: largest number of steps for one penalty.
        random_state: of the folds.

    Attributes:
        precision_: K, ``(D, D)``.
        eta_: ``(D,)``.
        graph_: adjacency matrix, booleans ``(D, D)``.
        penalty_: the penalty that was used.
        path_: the `Path`: penalties, solutions (on scaled columns) and criteria.
        domain_: "positive" for points on the positive orthant, else None.
        n_features_in_: D.

    Reference: Yu, Drton and Shojaie (2019), *Generalized score matching for non-negative data*;
    Lin, Drton and Shojaie (2016), *Estimation of high-dimensional graphical models using
    regularized score matching*.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 4))
        >>> X[:, 1] += X[:, 0]
        >>> GraphicalModel().fit(X).graph_.astype(int)
        array([[0, 1, 0, 0],
               [1, 0, 0, 0],
               [0, 0, 0, 0],
               [0, 0, 0, 0]])
    """

    kind: str = "gaussian"
    penalty: float | None = None
    selection: str = "ebic"
    ebic_gamma: float = 0.5
    num_penalties: int = 50
    min_penalty_ratio: float = 0.02
    refit: bool = True
    diagonal_multiplier: float | None = None
    fit_location: bool = True
    scale: bool = True
    weight: str | None = None
    cut: float = 3.0
    cv: int = 5
    tol: float = 1e-5
    max_iter: int = 5000
    random_state: Any = None

    def score(self, X: ArrayLike, y: Any = None, max_memory: int | None = None) -> float:
        """Minus the score-matching loss of held-out points, with the weight h for positive kinds.

        Larger is better. Columns are scaled as in `fit`, so that values of fits to different data
        differ by their scales too.

        Args:
            X: points ``(N, D)`` that the model was not fitted to.
            y: ignored.
            max_memory: bytes that may be taken beside model and points, which is measured.

        Returns:
            The mean over the points.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the points have another dimension than those of `fit`, or lie outside
                the domain.
        """
        z = self._queries(X) / self._scales
        check_domain(z, self._kind, self.kind)
        z = z - self._centre

        def mean_loss(part: Tensor) -> Tensor:
            held_out = Quadratic.of(part, self._kind, self._weight())
            loss = held_out.loss(self._scaled_precision, self._scaled_eta)
            return torch.full((len(part),), loss, dtype=torch.float64)

        return -in_chunks(mean_loss, [z], len(z), max_memory).mean().item()

    def _fit(self, x: Tensor, max_memory: int | None) -> None:
        self._check_arguments(x)
        with limited(max_memory, "take fewer columns, or fewer penalties"):
            self._learn(x)

    def _learn(self, x: Tensor) -> None:
        self._kind = find_kind(self.kind)
        check_domain(x, self._kind, self.kind)
        self.domain_ = "positive" if self._kind.positive else None
        scales = _scales(x)
        self._scales = scales if self.scale else torch.ones_like(x[0])
        z = x / self._scales
        # Products of columns far from zero would lose the digits of their differences.
        moved = self.fit_location and not self._kind.positive
        self._centre = z.mean(0) if moved else torch.zeros_like(z[0])
        z = z - self._centre
        _refuse_dependent(z)
        total = self._quadratic(z)
        problem = total.problem(self.fit_location)
        lambdas = self._penalties(problem, total.count)
        path, models = self._follow(problem, lambdas, total.count)
        self._store(lambdas, path, models, *self._criteria(z, total, problem, lambdas, models))
        self._store_model(total, models[self.path_.chosen or 0])

    def _field(self) -> VectorField:
        K, eta = torch.as_tensor(self.precision_), torch.as_tensor(self.eta_)
        return VectorField(lambda x: self._kind.score(x, K, eta))

    def _log_density(self, x: Tensor) -> Tensor:
        check_domain(x, self._kind, self.kind)
        # About the centre, since squares of columns far from zero would lose their digits.
        z = x / self._scales - self._centre
        return self._kind.log_density(z, self._scaled_precision, self._scaled_eta)

    # The steps of a fit.

    def _weight(self) -> Weight:
        default = "x^2" if self._kind.b < 1 else "log"
        return Weight(default if self.weight is None else self.weight, self.cut)

    def _quadratic(self, z: Tensor) -> Quadratic:
        return Quadratic.of(z, self._kind, self._weight())

    def _penalties(self, problem: Problem, n: int) -> Array:
        if self.penalty is not None:
            return np.array([float(self.penalty)])
        largest = max(largest_penalty(self._conditioned(problem, n)), 1e-12)
        return np.geomspace(largest, self.min_penalty_ratio * largest, self.num_penalties)

    def _conditioned(self, problem: Problem, n: int) -> Problem:
        """The problem with the diagonal multiplier, in which edges are searched."""
        multiplier = self.diagonal_multiplier
        if multiplier is None:
            multiplier = default_multiplier(n, len(problem.g))
        return problem.with_multiplier(multiplier)

    def _follow(self, problem: Problem, lambdas: Array, n: int) -> tuple[list[Tensor], Models]:
        """The path of n points, and the models that are compared."""
        control = Control(self.tol, self.max_iter)
        path = follow(self._conditioned(problem, n), lambdas, control)
        if not self.refit:
            return path, list(path)
        # Of d log(D) points or fewer, d neighbours of a node cannot be told from others.
        most = max(1.0, n / (2 * math.log(len(problem.g))))
        return path, refit_all(problem, path, max_degree=most)

    def _criteria(
        self, z: Tensor, total: Quadratic, problem: Problem, lambdas: Array, models: Models
    ) -> tuple[Array | None, Array | None]:
        """Extended BIC and held-out loss, of which the one that was asked for is not None."""
        n, location = total.count, self.fit_location
        if self.penalty is not None:
            return None, None
        if self.selection == "ebic":
            scale = loss_scale(z, self._kind, self._weight(), total, location)
            return extended_bic(problem, models, n / scale, n, self.ebic_gamma), None
        order = torch.randperm(n, generator=self._generator(self.random_state))
        folds = [self._quadratic(z[part]) for part in order.tensor_split(self.cv)]

        def solve(train: Quadratic) -> Models:
            return self._follow(train.problem(location), lambdas, train.count)[1]

        return None, held_out_losses(total, folds, solve, location)

    def _store(
        self,
        lambdas: Array,
        path: list[Tensor],
        models: Models,
        ebic: Array | None,
        cv_loss: Array | None,
    ) -> None:
        """Set `path_` and `penalty_`."""
        criterion = ebic if cv_loss is None else cv_loss
        usable = [math.nan if model is None else 0.0 for model in models]
        if np.isnan(usable).all():
            raise ValueError(
                "no model of the path could be estimated again without its penalty; use more "
                "points, larger penalties, or refit=False"
            )
        chosen = None if criterion is None else int(np.nanargmin(criterion + np.array(usable)))
        edges = np.array([count_edges(K) for K in path])
        precisions = np.stack([to_array(K) for K in path])
        self.path_ = Path(lambdas, precisions, edges, ebic, cv_loss, chosen)
        self.penalty_ = float(lambdas[chosen or 0])

    def _store_model(self, total: Quadratic, K: Tensor | None) -> None:
        """Set the parameters, on scaled columns and in units of X."""
        assert K is not None
        self._scaled_precision = K
        self._scaled_eta = total.eta(K, self.fit_location)
        units = self._scales**self._kind.a
        self.precision_: Array = to_array(K / units[:, None] / units)
        eta = self._scaled_eta + K @ self._centre
        self.eta_: Array = to_array(eta / self._scales**self._kind.b)
        self.graph_: NDArray[np.bool_] = self.precision_ != 0
        np.fill_diagonal(self.graph_, False)

    def _check_arguments(self, x: Tensor) -> None:
        if x.shape[1] < 2:
            raise ValueError(
                f"Found array with {x.shape[1]} feature(s) (shape={tuple(x.shape)}) while a "
                "minimum of 2 is required; a graph needs two columns"
            )
        if self.selection not in ("ebic", "cv"):
            raise ValueError(f'selection must be "ebic" or "cv", got {self.selection!r}')
        for name in ("tol", "min_penalty_ratio"):
            check_positive(getattr(self, name), name, "the default suits most data")
        for name in ("num_penalties", "max_iter", "cv"):
            check_count(getattr(self, name), name, "the default suits most data")
        for name in ("refit", "fit_location", "scale"):
            check_flag(getattr(self, name), name, "the default suits most data")
        if self.min_penalty_ratio >= 1:
            raise ValueError(
                f"min_penalty_ratio must lie between 0 and 1, got {self.min_penalty_ratio!r}; the "
                "path leads from the largest penalty to smaller ones"
            )
        _check_numbers(self.penalty, self.ebic_gamma, self.diagonal_multiplier)
        if self.selection == "cv" and not 2 <= self.cv <= len(x) // 2:
            raise ValueError(
                f"cv must lie between 2 and half the number of points, got {self.cv} for "
                f"{len(x)} points; 5 is usual"
            )


def default_multiplier(n: int, dim: int) -> float:
    """The diagonal multiplier for n points in ``dim`` dimensions, between 1 and 2.

    ``1 + min(D / n, 1 - 1 / (1 + 4 e max(r, sqrt(r))))`` with ``r = 6 log(D) / n``: the second is
    the bound of Yu, Drton and Shojaie (2019); with many points less is needed.

    Example:
        >>> default_multiplier(1000, 200), round(default_multiplier(100, 200), 2)
        (1.2, 1.86)
    """
    ratio = 6 * math.log(dim) / n
    bound = 1 - 1 / (1 + 4 * math.e * max(ratio, math.sqrt(ratio)))
    return 1 + min(dim / n, bound)


def _scales(x: Tensor) -> Tensor:
    """Standard deviations of the columns."""
    found = x.std(0)
    constant = (found <= 1e-12 * x.abs().max(0).values).nonzero()[:, 0].tolist()
    if constant:
        raise ValueError(
            f"X must not have constant columns, got column {constant[0]} and {len(constant) - 1} "
            "more; drop them"
        )
    return found


def _refuse_dependent(z: Tensor) -> None:
    """Refuse columns that determine each other: the graph of their density does not exist."""
    if len(z) <= z.shape[1]:  # too few points to tell
        return
    centred = z - z.mean(0)
    _, values, v = torch.linalg.svd(centred / centred.norm(dim=0), full_matrices=False)
    if values[-1] > 1e-9 * values[0]:
        return
    columns = (v[-1].abs() > 1e-6).nonzero()[:, 0].tolist()
    raise ValueError(
        f"X must not have columns that are linear functions of others, got {columns}, of which one "
        "follows from the others; drop one of them"
    )


def _check_numbers(penalty: Any, ebic_gamma: Any, multiplier: Any) -> None:
    if penalty is not None:
        check_positive(penalty, "penalty", "None selects one")
    if not is_number(ebic_gamma) or not 0 <= ebic_gamma <= 1:
        raise ValueError(f"ebic_gamma must lie between 0 and 1, got {ebic_gamma!r}; 0.5 is usual")
    if multiplier is not None and (not is_number(multiplier) or multiplier < 1):
        raise ValueError(
            f"diagonal_multiplier must be at least 1, got {multiplier!r}; None suits most data"
        )

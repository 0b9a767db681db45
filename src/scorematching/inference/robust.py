"""Robust fits by Windham's weights: points that are unlikely under the model count less.

Points with weights ``p^c`` have the density ``p^(1 + c)`` if p is right, so what is fitted to them
is ``(1 + c) log p``. Weights and parameters are updated in turn until both agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_positive, check_shape, check_type
from scorematching._clusters import groups_of, require_same_rows
from scorematching.domains.base import Region, refuse_rows
from scorematching.errors import NotConvergedError, SingularInformationError
from scorematching.inference.covariance import require_variation, sandwich
from scorematching.inference.fitting import Prepared, check_model, prepare
from scorematching.inference.growth import require_variance
from scorematching.inference.optimise import Optimum, minimise
from scorematching.inference.parameters import Parametric, Theta, as_float64
from scorematching.inference.problem import Problem, jacobian
from scorematching.inference.result import FitResult, Setting
from scorematching.objectives.base import Objective
from scorematching.objectives.denoising import DenoisingScoreMatching
from scorematching.objectives.likelihood import MaximumLikelihood

MAX_ITERATIONS = 500
TOLERANCE = 1e-9
"""Change of the parameters, relative to their size, that ends the iteration."""

LogWeight = Callable[[Theta, Tensor], Tensor]


@torch.inference_mode(False)
@torch.enable_grad()
def fit_robust(
    model: Any,
    X: Any,
    power: float,
    objective: Objective | None = None,
    start: Any = None,
    domain: Region | None = None,
    log_weight: LogWeight | None = None,
    generator: torch.Generator | None = None,
    cluster: Any = None,
) -> FitResult:
    """A fit in which point i has weight ``p(x_i)^power`` under the fitted model itself.

    Outliers have a small density and hardly count. Standard errors are those of this estimating
    equation, the dependence of the weights on the parameters included.

    Args:
        model: a log-density, as for `fit`.
        X: points ``(N, *event)``.
        power: of the density in the weights, above zero; efficiency falls and robustness rises
            with it. A few hundredths to one half are usual.
        objective: `ScoreMatching` by default, or a sliced one.
        start: initial values by name, as for `fit`.
        domain: where the points live, as for `fit`.
        log_weight: ``(theta, x) -> (N,)``, the part of the log-density that weights are made of;
            None takes all of it. A density that is infinite at the boundary needs another.
        generator: source of randomness; None is torch's default generator.
        cluster: labels of the points, as for `fit`; weights stay those of single points.

    Raises:
        NotConvergedError: if weights and parameters do not settle; try a smaller power.

    Reference: Windham (1995), Robustifying model fitting; Scealy, Hingee, Kent and Wood (2024).

    Example:
        >>> from scorematching.inference.models import Gaussian
        >>> x = torch.cat([torch.linspace(-2, 2, 41), torch.tensor([60.0])])[:, None]
        >>> result = fit_robust(Gaussian(1), x, power=0.3)
        >>> bool(abs(result.params["linear[0]"]) < 1e-3)
        True
    """
    check_positive(power, "power", "0.1 is a start; fit(...) is the case of power zero")
    _require_score_matching(objective)
    _refuse_missing(X)
    prepared = prepare(model, X, objective, start, None, domain, None, generator)
    require_same_rows(X, cluster, "cluster")
    groups = groups_of(cluster, prepared.problem.weights > 0)
    own = prepared.problem.model
    if own.vector:
        raise TypeError(
            "model must be a log-density, got a score network, which gives points no weights; "
            "use fit"
        )
    check_model(prepared.problem)
    weight = own.call if log_weight is None else _checked(log_weight, prepared.problem)
    tilted = replace(own, call=partial(_tilted, own.call, weight, power))
    problem = replace(prepared.problem, model=tilted)
    theta, iterations = _iterate(problem, problem.parts[0].x, power, weight)
    settled = _weighted(problem, theta, problem.parts[0].x, power, weight)
    return _result(prepared, settled, theta, iterations, power, weight, groups)


def _tilted(call: LogWeight, weight: LogWeight, power: float, theta: Theta, x: Tensor) -> Tensor:
    """The log-density of weighted points, ``(N,)``; not a closure, so that it can be pickled."""
    return call(theta, x) + power * weight(theta, x)


def _checked(log_weight: LogWeight, problem: Problem) -> LogWeight:
    """A log-weight that returns one number per point at the start."""
    advice = "pass a function (theta, x) -> (N,)"
    check_type(log_weight, Callable, "log_weight must be callable or None", advice)
    found = log_weight(problem.model.unflatten(problem.model.start), problem.parts[0].x)
    wanted = "log_weight must return one number per point, shape {}"
    check_shape(found, (problem.num_points,), wanted, "sum over columns, not over points")
    return log_weight


def _require_score_matching(objective: Any) -> None:
    """Refuse losses with a minimum elsewhere: ``p^(1 + c)`` is not normalised, nor that of noise.

    Raises:
        ValueError: if it is a likelihood, or denoises.
    """
    if isinstance(objective, (MaximumLikelihood, DenoisingScoreMatching)):
        raise ValueError(
            "objective must be ScoreMatching() or a sliced one for fit_robust, got "
            f"{type(objective).__name__}(), with which the weights would bias the estimates; leave "
            "it out"
        )


def _refuse_missing(X: Any) -> None:
    """Refuse incomplete rows, which `fit` alone can use."""
    x = torch.atleast_2d(as_float64(X, "X"))
    refuse_rows(x.isnan().flatten(1).any(1), "X must have no missing values", "drop these rows")


def _weights(
    model: Parametric, theta: Tensor, x: Tensor, power: float, weight: LogWeight
) -> Tensor:
    """Weights of the points with sum one, ``(N,)``."""
    return torch.softmax(power * weight(model.unflatten(theta), x), 0)


def _weighted(
    problem: Problem, theta: Tensor, x: Tensor, power: float, weight: LogWeight
) -> Problem:
    return replace(problem, weights=_weights(problem.model, theta, x, power, weight).detach())


def _iterate(problem: Problem, x: Tensor, power: float, weight: LogWeight) -> tuple[Tensor, int]:
    """Parameters and weights in turn, from the fit without weights."""
    theta = minimise(problem).theta
    for iteration in range(1, MAX_ITERATIONS + 1):
        model = replace(problem.model, start=theta)
        found = _minimum(_weighted(replace(problem, model=model), theta, x, power, weight), power)
        change = (found - theta).abs().max()
        theta = found
        if change <= TOLERANCE * theta.abs().max():
            return theta, iteration
    raise NotConvergedError(
        f"weights and parameters must settle, got a change of {float(change):.2g} after "
        f"{MAX_ITERATIONS} turns; choose a smaller power"
    )


def _minimum(problem: Problem, power: float) -> Tensor:
    """The parameters for given weights.

    Raises:
        NotConvergedError: if the weights leave too few points.
    """
    try:
        return minimise(problem).theta
    except SingularInformationError as error:
        count = 1 / float(problem.weights.square().sum())
        if count > 10 * len(problem.model.names):
            raise
        raise NotConvergedError(
            f"weights of power {power:g} must leave more points than the model has parameters "
            f"({len(problem.model.names)}), got weights with which {count:.2g} of "
            f"{problem.num_points} count, about which the density has become a peak; choose a "
            "smaller power"
        ) from error


def _result(
    prepared: Prepared,
    problem: Problem,
    theta: Tensor,
    iterations: int,
    power: float,
    weight: LogWeight,
    groups: Tensor | None,
) -> FitResult:
    """The sandwich of ``sum_i w_i(theta) psi_i(theta) = 0``."""
    found = problem.derivatives(theta)
    require_variation(problem, found)
    x, own = problem.parts[0].x, prepared.problem.model
    leaf = theta.detach().requires_grad_()
    # Summed over points first: P backward passes, where derivatives of all weights would take N.
    weighted = found.gradients.T @ _weights(own, leaf, x, power, weight)
    (slopes,) = jacobian(weighted, (leaf,))
    found = found._replace(hessian=found.hessian + slopes)  # of the equation: not symmetric
    covariance = sandwich(found, problem.weights, groups)
    method = f"Windham's weights of power {power:g}, {iterations} turns"
    optimum = Optimum(theta, found, method, iterations)
    require_variance(problem, optimum)
    chosen = (prepared.objective, groups, prepared.seed, prepared.columns)
    return FitResult(Setting(own, problem, optimum, *chosen), covariance)

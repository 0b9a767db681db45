"""Fit a parametric model to a table of points, with standard errors.

The estimate minimises the mean loss over all points, in float64, to convergence: in closed form
where the loss is quadratic in the parameters, which is measured, and otherwise by L-BFGS and Newton
steps, or from a poor start by steps in a trust region. Sliced objectives draw the directions of
each point once, independently of all other points. Balanced directions and `SplitRademacher` couple
points, for which the sandwich is wrong, and are replaced by independent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_generator
from scorematching._clusters import groups_of, require_same_rows
from scorematching._memory import Budget, limited
from scorematching.derivatives.repeats import check_repeats, needs_all_rows
from scorematching.domains.base import Region, refuse_rows
from scorematching.errors import SmoothnessError
from scorematching.fields import as_field
from scorematching.inference.boundary import require_weight
from scorematching.inference.covariance import require_variation, sandwich
from scorematching.inference.growth import require_variance
from scorematching.inference.missing import ImportanceWeighted, require_draws
from scorematching.inference.models.base import NamedModel
from scorematching.inference.optimise import minimise, require_regular
from scorematching.inference.parameters import (
    Parametric,
    as_float64,
    column_names,
    parametric,
)
from scorematching.inference.pieces import ProblemInPieces
from scorematching.inference.problem import Part, Problem, unchanged
from scorematching.inference.result import FitResult, Setting
from scorematching.objectives import ScoreMatching
from scorematching.objectives.base import Objective
from scorematching.objectives.denoising import DenoisingScoreMatching, NoiseLadder
from scorematching.objectives.finite_difference import FiniteDifferenceSSM
from scorematching.objectives.likelihood import MaximumLikelihood
from scorematching.objectives.sliced import Sliced
from scorematching.projections import Rademacher, SplitRademacher

CHECKED = 128
"""Points at which the model's smoothness and derivatives are checked."""


@torch.inference_mode(False)
@torch.enable_grad()
def fit(
    model: Any,
    X: Any,
    objective: Objective | None = None,
    start: Any = None,
    weights: Any = None,
    domain: Region | None = None,
    missing: str | ImportanceWeighted | None = None,
    cluster: Any = None,
    generator: torch.Generator | None = None,
    check: bool = True,
    max_memory: int | None = None,
) -> FitResult:
    """Fit a parametric log-density to points by score matching, with standard errors.

    The covariance of the estimate is the sandwich ``H^-1 K H^-1 / N`` with H the Hessian of the
    mean loss and K the variance of one point's gradient: right also where the model is not. It runs
    on the CPU, on copies. Cost: P backward passes for each Newton step; one for a closed form.

    Args:
        model: an `nn.Module` ``x -> (N,)``, a `VectorField` around a score network, or a function
            ``f(theta, x)`` with theta a dict of tensors. The module itself is not changed.
            Covariates of the rows may come in by closure, all of them in the order of X.
        X: points ``(N, *event)``: a tensor, an array or a table.
        objective: `ScoreMatching` by default; any loss of the law, or `MaximumLikelihood`.
        start: initial values by name; needed for a function, optional for a module.
        weights: of the points, ``(N,)``, not negative; by default all equal. Errors are those of
            N points with these weights; for counts of equal rows repeat the rows.
        domain: where the points live, see `domains`; by default that of the objective, or of the
            model if it has an attribute ``domain``.
        missing: None refuses rows with NaN; "weighted", or `ImportanceWeighted`, uses what was
            observed in them, provided that entries are missing completely at random.
        cluster: labels of the points, ``(N,)``: points of one cluster may depend on each other.
        generator: source of randomness of the directions; None is torch's default generator.
        check: measure the model's smoothness and derivatives first; False saves time.
        max_memory: bytes that may be taken beside model and points, which is measured: rows are
            then evaluated in pieces. The gradients of all rows, N times P, are kept.

    Raises:
        ValueError: if X is not a finite table, has no more points than parameters, or max_memory
            is too small.
        SingularInformationError: if the data do not determine the parameters or their errors.
        NotConvergedError: if no minimum was found.
        SmoothnessError: if the model has kinks.

    Reference: Hyvarinen (2005); Song et al. (2019), Theorem 3; Forbes and Lauritzen (2015).

    Example:
        >>> x = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
        >>> normal = lambda theta, x: -0.5 * theta["precision"] * x.square().sum(-1)
        >>> abs(fit(normal, x, start={"precision": 1}).params[0] - 4 / x.square().sum()) < 1e-12
        tensor(True)
    """
    prepared = prepare(model, X, objective, start, weights, domain, missing, generator)
    require_same_rows(X, cluster, "cluster")
    with limited(max_memory, "take fewer points, or a model of fewer parameters") as budget:
        problem = prepared.problem if budget is None else _in_pieces(prepared.problem, budget)
        if check:
            check_model(problem)
        return _solved(problem, prepared, groups_of(cluster, problem.weights > 0))


def _solved(problem: Problem, prepared: Prepared, groups: Tensor | None) -> FitResult:
    """The minimum of a problem, with its covariance."""
    optimum = minimise(problem)
    require_regular(problem, optimum.derivatives.hessian)
    require_variance(problem, optimum)
    require_draws(problem, optimum.theta)
    if not optimum.is_closed_form:  # where gradients are linear in the parameters
        require_variation(problem, optimum.derivatives)
    covariance = sandwich(optimum.derivatives, problem.weights, groups)
    chosen = (prepared.objective, groups, prepared.seed, prepared.columns)
    return FitResult(Setting(problem.model, problem, optimum, *chosen), covariance)


def _in_pieces(problem: Problem, budget: Budget) -> Problem:
    """The problem in pieces that fit beside the gradients of all rows: two and a copy of them."""
    x = problem.parts[0].x
    _require_any_rows(problem.model, x, "max_memory must be None", "leave it out")
    gradients = 8 * problem.num_points * len(problem.model.names)
    budget.require(3 * gradients, "gradients of all rows take")
    limits = (budget.max_memory, budget.live + 3 * gradients)
    return ProblemInPieces(problem.model, problem.parts, problem.weights, *limits)


def _require_any_rows(model: Parametric, x: Tensor, wanted: str, advice: str) -> None:
    """Refuse a model that has a value for all rows only, where some of them are evaluated."""
    if needs_all_rows(model.at(model.start), x):
        raise ValueError(
            f"{wanted} for a model that has a value for all {len(x)} rows together only, as with "
            f"covariates in a closure, got {model.label}, which fails at two of them; {advice}"
        )


class Prepared(NamedTuple):
    """Arguments of a fit that have been checked.

    Attributes:
        problem: model, points with their noise, and weights.
        objective: with noise that is independent between points.
        seed: for later draws of noise.
        columns: names of the columns of X; None if it had none.
    """

    problem: Problem
    objective: Objective
    seed: int
    columns: tuple[Any, ...] | None


def prepare(
    model: Any,
    X: Any,
    objective: Any,
    start: Any,
    weights: Any,
    domain: Any,
    missing: Any,
    generator: torch.Generator | None,
) -> Prepared:
    """Check the arguments of `fit` and draw the noise."""
    x = as_points(X, missing)
    _require_columns(x, model)
    own = parametric(model, _start(model, x, start))
    objective = independent(ScoreMatching() if objective is None else objective)
    objective = on_domain(objective, domain, model)
    _require_normalised(objective, model)
    check_generator(generator, x)
    region = getattr(objective, "domain", None)
    if region is not None and not bool(x.isnan().any()):
        region.check(x)
    require_weight(region, x)
    require_same_rows(X, weights, "weights")
    found = as_weights(weights, len(x))
    _require_more_points(int((found > 0).sum()), own)
    noisy = bool(x.isnan().any()) or not isinstance(objective, (ScoreMatching, MaximumLikelihood))
    seed = int(torch.randint(2**62, (), generator=generator)) if noisy else 0
    parts = _parts(x, own, objective, missing, seed)
    return Prepared(Problem(own, parts, found), objective, seed + 1, column_names(X))


def _start(model: Any, x: Tensor, start: Any) -> Any:
    """Initial values: those given, and others that a model of `inference.models` takes from x."""
    if not isinstance(model, NamedModel) or not isinstance(start, Mapping | None):
        return start
    free = {name for name, p in model.named_parameters() if p.requires_grad}
    own = {name: value for name, value in model.initial(x).items() if name in free}
    return {**own, **(start or {})}


def as_points(X: Any, missing: Any = None) -> Tensor:
    """The data as float64 points ``(N, *event)``."""
    x = as_float64(X, "X")
    if x.ndim < 2 or x.numel() == 0:
        raise ValueError(
            f"X must have shape (N, *event) with N >= 1, got {tuple(x.shape)}; for N numbers pass "
            "X[:, None]"
        )
    refuse_rows(x.isinf().flatten(1).any(1), "X must be finite", "drop these rows")
    if missing is None:
        advice = 'drop these rows, or use what was observed in them with missing="weighted"'
        refuse_rows(x.isnan().flatten(1).any(1), "X must have no missing values", advice)
    elif missing != "weighted" and not isinstance(missing, ImportanceWeighted):
        raise ValueError(
            f'missing must be None, "weighted" or ImportanceWeighted(draws), got {missing!r}'
        )
    return x


def on_domain(objective: Any, domain: Any, model: Any) -> Objective:
    """The objective with a domain: the one given, its own, or that of the model.

    Raises:
        ValueError: if it has another one, or takes none.
    """
    if domain is None and getattr(objective, "domain", None) is None:
        domain = getattr(model, "domain", None)
    if domain is None:
        return objective
    if not hasattr(objective, "domain"):
        raise ValueError(
            f"domain must be None for {type(objective).__name__}, got {domain}; use ScoreMatching, "
            "SlicedScoreMatching or SlicedScoreMatchingVR"
        )
    if objective.domain not in (None, domain):
        raise ValueError(
            f"domain must be given once, got {domain} and {objective.domain} of the objective"
        )
    return replace(objective, domain=domain)


def _parts(
    x: Tensor, model: Parametric, objective: Objective, missing: Any, seed: int
) -> tuple[Part, ...]:
    generator = torch.Generator().manual_seed(seed)
    if not bool(x.isnan().any()):
        return (Part(torch.arange(len(x)), x, objective).drawn(generator),)
    if model.vector or x.ndim != 2:
        raise ValueError(
            "missing values need a log-density of points (N, D), got "
            f"{'a score network' if model.vector else f'points {tuple(x.shape)}'}; drop the rows"
        )
    _require_any_rows(model, x, "X must have no missing values", "drop these rows")
    weighted = ImportanceWeighted() if missing == "weighted" else missing
    return tuple(weighted.parts(x, objective, generator))


def as_weights(weights: Any, num_points: int) -> Tensor:
    """Weights of the points with sum one."""
    if weights is None:
        return torch.full((num_points,), 1 / num_points, dtype=torch.float64)
    found = as_float64(weights, "weights")
    if found.shape != (num_points,):
        raise ValueError(
            f"weights must hold one number per row of X, shape ({num_points},), got "
            f"{tuple(found.shape)}; leave them out for equal weights"
        )
    if not bool((found >= 0).all() & found.isfinite().all() & (found.sum() > 0)):
        raise ValueError(
            "weights must be finite, not negative and not all zero, got "
            f"{found.min():.3g} to {found.max():.3g}; leave them out for equal weights"
        )
    return found / found.sum()


def independent(objective: Any) -> Objective:
    """The objective with noise that is independent between points, as the sandwich assumes.

    Raises:
        TypeError: if it has no loss that a fit can use.
        ValueError: if it estimates something from the batch, or takes finite differences.
    """
    kinds = (ScoreMatching, Sliced, DenoisingScoreMatching, MaximumLikelihood)
    if not isinstance(objective, kinds):
        raise TypeError(
            f"objective must be a loss of single points, got {objective!r}; use ScoreMatching(), "
            "SlicedScoreMatchingVR(), SlicedScoreMatching() or DenoisingScoreMatching(sigma)"
        )
    if isinstance(objective, FiniteDifferenceSSM):
        raise ValueError(
            "objective must have exact derivatives, got FiniteDifferenceSSM, whose estimates are "
            "biased where its step is not small in the units of the data, which standard errors do "
            "not show; use SlicedScoreMatching, its limit for small steps"
        )
    if isinstance(getattr(objective, "sigma", None), NoiseLadder):
        raise ValueError(
            "objective must have one sigma, or one for each coordinate, got a ladder of levels, "
            "which is for networks that take the level; choose one level"
        )
    if getattr(objective, "beta", 1.0) == "optimal":
        raise ValueError(
            'objective must not estimate beta from the batch, got beta="optimal", which makes the '
            "losses of points depend on each other; use beta=1.0"
        )
    if not isinstance(objective, Sliced):
        return objective
    projection = objective.projection
    if isinstance(projection, (Rademacher, SplitRademacher)):
        return replace(objective, projection=Rademacher(balanced=False))
    return replace(objective, projection=replace(projection, balanced=False))


def _require_normalised(objective: Objective, model: Any) -> None:
    """Refuse the likelihood of a model that says that it is unnormalised."""
    if isinstance(objective, MaximumLikelihood) and not getattr(
        as_field(model), "normalised", True
    ):
        raise ValueError(
            f"MaximumLikelihood needs a normalised model, got {type(model).__name__} with "
            "normalised = False; leave objective out for score matching"
        )


def check_model(problem: Problem) -> None:
    """Measure smoothness and derivatives of the model at its start, at some of the points.

    Raises:
        SmoothnessError: if it has kinks.
        WrongDerivativeError: if its derivatives are wrong.
        ValueError: if its values change from call to call, or with the other points.
    """
    complete = [part for part in problem.parts if part.view is unchanged]
    theta = problem.model.start.detach().requires_grad_()
    call = problem.model.at(theta)
    few = tuple(_few(part, call) for part in complete) or problem.parts[:1]
    for part in complete:
        check_repeats(call, part.x)
    try:
        Problem(problem.model, few, problem.weights).losses(theta, checked=True)
    except SmoothnessError as error:
        error.add_note(
            "The model was measured at its start, where scales far below those of X look like "
            "kinks: give start in the units of X. fit(..., check=False) measures nothing."
        )
        raise


def _few(part: Part, call: Callable[[Tensor], Tensor]) -> Part:
    """The points to be checked: the first ones, or those farthest from the boundary of a domain."""
    if needs_all_rows(call, part.x):
        return part
    domain = getattr(part.objective, "domain", None)
    depth = torch.zeros(len(part.x)) if domain is None else domain.depth(part.x)
    return part.take(depth.sort(descending=True, stable=True).indices[:CHECKED])


def _require_more_points(num_points: int, model: Parametric) -> None:
    if num_points <= len(model.names):
        raise ValueError(
            f"X must hold more points than the model has parameters ({len(model.names)}), got "
            f"{num_points} rows; collect more, or fix parameters"
        )


def _require_columns(x: Tensor, model: Any) -> None:
    """Require as many columns as a model of `inference.models` has."""
    if isinstance(model, NamedModel) and x.shape[1:] != (model.dim,):
        raise ValueError(
            f"X must have {model.dim} column{'s' * (model.dim > 1)} for {type(model).__name__}, "
            f"got {x[0].numel()}, shape {tuple(x.shape)}; give the model dim={x[0].numel()}"
        )

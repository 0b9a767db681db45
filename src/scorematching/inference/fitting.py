"""Fit a parametric model to a table of points, with standard errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_generator
from scorematching.inference.covariance import groups_of, sandwich
from scorematching.inference.optimise import Optimum, minimise, require_regular
from scorematching.inference.parameters import Parametric, as_float64, parametric
from scorematching.inference.problem import Part, Problem
from scorematching.inference.result import FitResult, Setting
from scorematching.objectives import ScoreMatching
from scorematching.objectives.base import Objective
from scorematching.objectives.denoising import DenoisingScoreMatching
from scorematching.objectives.likelihood import MaximumLikelihood
from scorematching.objectives.sliced import Sliced
from scorematching.projections import Rademacher, SplitRademacher

CHECKED = 128
"""Points at which the model's smoothness and derivatives are checked."""


def fit(
    model: Any,
    X: Any,
    objective: Objective | None = None,
    start: Any = None,
    weights: Any = None,
    cluster: Any = None,
    generator: torch.Generator | None = None,
) -> FitResult:
    """Fit a parametric log-density to points, with standard errors.

    The estimate minimises the mean loss over all points, in float64, to convergence: in closed
    form where the loss is quadratic in the parameters, which is measured, and otherwise by L-BFGS
    and Newton steps. Its covariance is the sandwich ``H^-1 K H^-1 / N`` with H the Hessian of the
    mean loss and K the variance of the gradient of one point's loss: right also where the model is
    not. Cost: P backward passes over the data for each Newton step.

    Sliced objectives draw the directions of each point once, independently of all other points.
    Balanced directions and `SplitRademacher` couple points, for which the sandwich is wrong, and
    are replaced by independent ones of the same distribution.

    Args:
        model: an `nn.Module` ``x -> (N,)`` with named parameters (those that need no gradient stay
            as they are), a `VectorField` around one, or a function ``f(theta, x)`` with theta a
            dict of tensors. The module itself is not changed.
        X: points ``(N, *event)``: a tensor, an array or a table.
        objective: `ScoreMatching` by default; any loss of the law, or `MaximumLikelihood`.
        start: initial values by name; needed for a function, optional for a module.
        weights: of the points, ``(N,)``, not negative; by default all equal.
        cluster: labels of the points, ``(N,)``: points of one cluster may depend on each other.
        generator: source of randomness of the directions; None is torch's default generator.

    Returns:
        Estimates, standard errors, tests and tables.

    Raises:
        ValueError: if X is not a finite table, or has no more points than parameters.
        SingularInformationError: if the data do not determine the parameters.
        NotConvergedError: if no minimum was found.
        SmoothnessError: if the model has kinks.

    Reference: Hyvarinen (2005); Song et al. (2019), Theorem 3; Forbes and Lauritzen (2015).

    Example:
        The precision of normal data, by its closed form ``1 / mean(x^2)``.

        >>> x = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
        >>> result = fit(lambda theta, x: -0.5 * theta["precision"] * x.square().sum(-1), x,
        ...              start={"precision": 1.0})
        >>> abs(result.params["precision"] - 1 / x.square().mean().item()) < 1e-12
        True
    """
    x = as_points(X)
    own = parametric(model, start)
    objective = independent(ScoreMatching() if objective is None else objective)
    check_generator(generator, x)
    _require_more_points(len(x), own)
    seed = int(torch.randint(2**62, (), generator=generator))
    part = Part(torch.arange(len(x)), x, objective).drawn(torch.Generator().manual_seed(seed))
    problem = Problem(own, (part,), as_weights(weights, len(x)))
    groups = groups_of(cluster, len(x))
    check_model(problem)
    return _result(problem, minimise(problem), objective, groups, seed)


def as_points(X: Any) -> Tensor:
    """The data as float64 points ``(N, *event)``."""
    x = as_float64(X, "X")
    if x.ndim < 2 or x.numel() == 0:
        raise ValueError(
            f"X must have shape (N, *event) with N >= 1, got {tuple(x.shape)}; for N numbers pass "
            "X[:, None]"
        )
    bad = (~x.isfinite()).flatten(1).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise ValueError(
            f"X must be finite, got NaN or infinity in {len(bad)} of {len(x)} rows: "
            f"{rows_text(bad)}; drop them"
        )
    return x


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


def rows_text(rows: list[int], most: int = 8) -> str:
    """Row numbers to print, the first few of them."""
    shown = ", ".join(map(str, rows[:most]))
    return shown + (", ..." if len(rows) > most else "")


def independent(objective: Any) -> Objective:
    """The objective with noise that is independent between points.

    Raises:
        TypeError: if it has no loss that a fit can use.
        ValueError: if it estimates something from the batch.
    """
    kinds = (ScoreMatching, Sliced, DenoisingScoreMatching, MaximumLikelihood)
    if not isinstance(objective, kinds):
        raise TypeError(
            f"objective must be a loss of single points, got {objective!r}; use ScoreMatching(), "
            "SlicedScoreMatchingVR(), SlicedScoreMatching() or DenoisingScoreMatching(sigma)"
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


def check_model(problem: Problem) -> None:
    """Measure smoothness and derivatives of the model at its start, at some of the points.

    Raises:
        SmoothnessError: if it has kinks.
        WrongDerivativeError: if its derivatives are wrong.
    """
    few = tuple(_few(part) for part in problem.parts)
    theta = problem.model.start.detach().requires_grad_()
    replace(problem, parts=few).losses(theta, checked=True)


def _few(part: Part) -> Part:
    noise = part.noise
    if isinstance(noise, Tensor):
        noise = noise[:CHECKED] if noise.ndim == part.x.ndim else noise[:, :CHECKED]
    return replace(part, rows=part.rows[:CHECKED], x=part.x[:CHECKED], noise=noise)


def _require_more_points(num_points: int, model: Parametric) -> None:
    if num_points <= len(model.names):
        raise ValueError(
            f"X must hold more points than the model has parameters ({len(model.names)}), got "
            f"{num_points} rows; collect more, or fix parameters"
        )


def _result(
    problem: Problem, optimum: Optimum, objective: Objective, groups: Tensor | None, seed: int
) -> FitResult:
    require_regular(problem, optimum.derivatives.hessian)
    covariance = sandwich(optimum.derivatives, problem.weights, groups)
    return FitResult(Setting(problem, optimum, objective, groups, seed + 1), covariance)

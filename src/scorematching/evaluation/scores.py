"""Scores of anything that has one: a field, a distribution, an estimator, a function, numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points, check_shape, torch_numbers
from scorematching._memory import Budget, in_chunks
from scorematching.derivatives.repeats import check_repeats
from scorematching.distributions import Distribution
from scorematching.fields import Field, LogDensityField, VectorField
from scorematching.types import Vector

_BATCH_SIZE = 1024

KINDS = (
    "a Field, a Distribution, an estimator with grad_log_density, the result of a fit, a "
    "function that returns log-densities (N,) or scores of the shape of x, or a tensor of scores"
)

_COMPARE = "pass an objective with that domain, such as ScoreMatching(domain=PositiveOrthant())"
_MAP = (
    "map the points to all of space, as y = log(x) does with positive x, and pass the scores "
    "there, x * score(x) + 1; or compare the model with others by evaluation.compare with an "
    "objective of that domain"
)
"""What to do with a model on a domain instead: to compare its losses, or to use its score."""


def scores_at(model: Any, x: Tensor, budget: Budget | None = None) -> Tensor:
    """The score at points, ``(N, *event) -> (N, D)``, without gradients.

    Args:
        model: a `Field`; a `Distribution`; an estimator with ``grad_log_density``; a function or
            module that returns log-densities ``(N,)`` or scores of the shape of its points (the
            two are told apart by their shape); or the scores themselves, a tensor like x.
        x: points ``(N, *event)``.
        budget: of memory.

    Returns:
        Scores ``(N, D)``.

    Raises:
        TypeError: the model is none of these.
        ValueError: it returns another shape, or scores that are not finite.
    """
    check_points(x)
    x = x.detach()
    with torch.no_grad():
        if isinstance(model, Tensor):
            found = model.detach()
        else:
            score = score_function(model, x[: _BATCH_SIZE if budget is None else 1])
            check_repeats(score, x, limited=budget is not None)
            found = in_chunks(score, [x], _BATCH_SIZE, budget)
    _check_scores(found, x)
    return found.flatten(1)


def score_function(model: Any, x: Tensor) -> Vector:
    """The score of a model as a function; a bare callable is called at x to see what it returns."""
    if isinstance(model, Distribution):
        return model.score
    _check_domain(model, _MAP)
    if isinstance(model, Field):
        return model.score
    _check_columns(model)
    if callable(getattr(model, "grad_log_density", None)):
        return lambda x: torch.as_tensor(model.grad_log_density(x.cpu().numpy().copy())).to(x)
    if hasattr(model, "cov_params") and callable(getattr(model, "predict", None)):
        return lambda x: torch.as_tensor(model.predict(x, "score")).to(x)
    if not callable(model):
        raise TypeError(f"the model must be {KINDS}, got {type(model).__name__}")
    vectors = _returns_vectors(model, x)
    field = VectorField(model) if vectors else LogDensityField(model, feature_axes=0)
    return field.score


def field_at(model: Any, X: Any, whole_space: bool = True) -> tuple[Field, Tensor]:
    """The field of a model, whose derivatives can be taken, and points in the form that it takes.

    Args:
        model: as for `scores_at`, except numbers and estimators outside the library, which have no
            derivatives.
        X: points ``(N, *event)``: a tensor, an array or a data frame.
        whole_space: refuse an estimator whose density ends at a boundary.

    Returns:
        The field, and the points as a tensor.

    Raises:
        TypeError: the model cannot be differentiated.
    """
    if whole_space:
        _check_domain(model, _COMPARE)
    if hasattr(model, "_field") and hasattr(model, "_queries"):  # a ScoreEstimator
        return model._field(), model._queries(X.cpu().numpy() if isinstance(X, Tensor) else X)
    fitted = isinstance(getattr(model, "field", None), Field)  # the result of a fit, in float64
    x = model._points(X) if fitted else _as_tensor(X)
    check_points(x, "X")
    if isinstance(model, Field):
        return model, x
    if fitted:
        return model.field, x
    if isinstance(model, Tensor) or not callable(model):
        raise TypeError(
            f"the model must be one whose score can be differentiated, got {type(model).__name__}; "
            "pass a Field, an estimator of this library, or a function of tensors that returns "
            "log-densities (N,) or scores of the shape of x"
        )
    with torch.no_grad():
        vectors = _returns_vectors(model, x[:_BATCH_SIZE])
    return VectorField(model) if vectors else LogDensityField(model, feature_axes=0), x


def _as_tensor(X: Any) -> Tensor:
    """A tensor as it is; copies of arrays and data frames, whose memory may be read-only."""
    return torch.as_tensor(torch_numbers(X, "X"))


def _check_domain(model: Any, advice: str) -> None:
    """Refuse estimators of densities that do not vanish at the boundary of their domain."""
    domain = _domain_of(model)
    if domain is not None:
        place = f"the {domain} orthant" if isinstance(domain, str) else domain
        raise ValueError(
            f"the model must have a density on all of space, got one on {place}; there, "
            f"integration by parts leaves a term at the boundary: {advice}"
        )


def _domain_of(model: Any) -> Any:
    """Where a model says that its density lives; None for all of space."""
    model = model.model.call if isinstance(model, Field) else model
    return getattr(model, "domain_", None) or getattr(model, "domain", None)


def _check_columns(model: Any) -> None:
    """Refuse estimators that set columns aside: Stein's identity does not hold along these."""
    table: Any = getattr(model, "table_", None)
    aside = [*getattr(table, "constant", ()), *getattr(table, "dependent", ())]
    if aside:
        names = ", ".join(table.names[i] for i in sorted(aside))
        raise ValueError(
            f"the model must have a density in all columns, got {type(model).__name__}, which set "
            f"aside columns {names} as constant or functions of others; fit and test without them"
        )


def _returns_vectors(model: Any, x: Tensor) -> bool:
    """Whether a callable returns scores; False if it returns log-densities."""
    found = model(x.clone())  # it may change its points in place
    if isinstance(found, Tensor) and found.shape in (x.shape, x.shape[:1]):
        return found.shape == x.shape
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    raise ValueError(
        f"the model must return log-densities ({len(x)},) or scores {tuple(x.shape)} for "
        f"{len(x)} points, got {shape}; reduce over the event axes only, not over the batch"
    )


def _check_scores(found: Tensor, x: Tensor) -> None:
    wanted = "the scores must have the shape of x, {}"
    check_shape(found, x.shape, wanted, "pass grad log p at the same points")
    bad = int((~found.isfinite()).flatten(1).any(1).sum())
    if bad:
        raise ValueError(
            f"the scores must be finite, got NaN or infinity at {bad} of {len(x)} points; "
            "check that all points lie where the model has a density"
        )

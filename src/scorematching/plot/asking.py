"""Data as arrays, and the values of models at them, whatever kind of model it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scorematching._checks import check_shape
from scorematching.derivatives.memory import owner_of
from scorematching.domains import Box, Domain
from scorematching.fields import Field, LogDensityField

Array = NDArray[np.float64]
_BATCH_SIZE = 4096


def to_points(data: Any, name: str = "data") -> Array:
    """Finite points ``(N, D)`` from an array, a tensor or a data frame; ``(N,)`` is one column.

    Raises:
        ValueError: if there is no point, or some are not finite.
    """
    raw = data.detach().cpu().numpy() if isinstance(data, Tensor) else data
    try:
        x = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be an array of numbers, got {type(data).__name__} with entries that are "
            "no numbers; select columns of numbers"
        ) from None
    x = np.ascontiguousarray(x[:, None] if x.ndim == 1 else x)  # torch has no negative strides
    if x.ndim != 2 or x.size == 0:
        raise ValueError(
            f"{name} must have shape (N, D) with N, D >= 1, got {x.shape}; flatten images with "
            f"{name}.reshape(len({name}), -1)"
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {(~np.isfinite(x)).any(1).sum()} of "
            f"{len(x)} rows; drop them first"
        )
    return x


def check_columns(x: Array, samples: Array) -> None:
    """Require samples with the columns of data."""
    if samples.shape[1] != x.shape[1]:
        raise ValueError(
            f"samples must have the {x.shape[1]} columns of data, got {samples.shape[1]}; draw "
            "them from a model of these data"
        )


def samples_of(samples: Any, data: Any) -> Array:
    """Samples as points, in the order of the columns of data where both are data frames.

    Raises:
        ValueError: if they have other columns.
    """
    names, given = getattr(data, "columns", None), getattr(samples, "columns", None)
    if names is None or given is None or list(names) == list(given):
        return to_points(samples, "samples")
    if sorted(map(str, names)) != sorted(map(str, given)):
        raise ValueError(
            f"samples must have the columns of data, {[*names][:5]}, got {[*given][:5]}; rename "
            "them"
        )
    return to_points(samples[list(names)], "samples")


def names_of(data: Any, dim: int) -> list[str]:
    """Names of the columns of a data frame; x1, x2 ... otherwise."""
    columns = getattr(data, "columns", None)
    if columns is None or len(columns) != dim:
        return [f"x{i + 1}" for i in range(dim)]
    return [label_of(column) for column in columns]


def label_of(name: Any) -> str:
    """A name as matplotlib shows it: dollars are dollars, not marks of formulas."""
    return str(name).replace("$", r"\$")


def log_density_at(model: Any, x: Array, like: Any) -> Array:
    """The log-density of a model at points, minus infinity outside its domain, ``(N, D) -> (N,)``.

    Args:
        model: an estimator with ``score_samples``, a result with ``predict``, a field or a
            callable on tensors.
        x: the points.
        like: the data; a tensor decides dtype and device, a data frame has names of columns.

    Raises:
        TypeError: if the model has no log-density.
    """
    if hasattr(model, "score_samples"):
        inside, found = _is_allowed(model, x), np.full(len(x), -np.inf)
        if inside.any():
            found[inside] = model.score_samples(_as_given(x[inside], like))
        return found
    if _is_result(model):
        own = x[:, _order(model, x, like)]
        found = log_density_at(model.field, own, torch.empty(0, dtype=torch.float64))
        return np.where(_inside(model, own), found, -np.inf)
    if isinstance(model, Field) and not isinstance(model, LogDensityField):
        raise TypeError(
            f"the model must have a log-density, got {model!r}, which has a score alone; draw it "
            "with scorematching.plot.score_field"
        )
    field = model if isinstance(model, LogDensityField) else _field(model, "score_samples")
    return _evaluate(field.log_density, model, x, like, (len(x),))


def _is_result(model: Any) -> bool:
    """Whether this is the result of a fit."""
    return hasattr(model, "conf_int") and hasattr(model, "predict")


def _order(model: Any, x: Array, like: Any) -> list[int]:
    """Numbers of the columns of data that are those of a fit, in its order."""
    numbers = np.arange(x.shape[1], dtype=np.float64)[None]
    order: list[int] = model._points(_as_given(numbers, like))[0].long().tolist()
    return order


def _inside(model: Any, x: Array) -> Any:
    """Whether points lie in the domain of a fit; all do on curved ones, which have no inside."""
    domain = getattr(model, "domain", None)
    if not isinstance(domain, (Box, Domain)):
        return np.ones(len(x), dtype=bool)
    return (domain.depth(torch.as_tensor(x)) >= 0).numpy()


def _is_allowed(estimator: Any, x: Array) -> Any:
    """Whether an estimator has a density at points: those for positive points refuse others."""
    if getattr(estimator, "domain_", None) != "positive":
        return np.ones(len(x), dtype=bool)
    return (x > 0).all(1)


def score_at(model: Any, x: Array, like: Any) -> Array:
    """The score of a model at points, NaN outside its domain, ``(N, D) -> (N, D)``.

    See `log_density_at`.
    """
    found = np.full(x.shape, np.nan)
    if hasattr(model, "grad_log_density"):
        inside = _is_allowed(model, x)
        if inside.any():
            found[inside] = model.grad_log_density(_as_given(x[inside], like))
        return found
    if _is_result(model):
        order = _order(model, x, like)
        scores = score_at(model.field, x[:, order], torch.empty(0, dtype=torch.float64))
        found[:, order] = np.where(_inside(model, x[:, order])[:, None], scores, np.nan)
        return found
    field = model if isinstance(model, Field) else _field(model, "grad_log_density")
    return _evaluate(field.score, model, x, like, x.shape)


def _as_given(x: Array, like: Any) -> Any:
    """Points as a data frame where the data are one, since estimators compare names of columns."""
    columns = getattr(like, "columns", None)
    return x if columns is None else type(like)(x, columns=columns)


def _field(model: Any, method: str) -> LogDensityField:
    if not callable(model):
        raise TypeError(
            f"the model must be an estimator with {method}, a field or a callable log-density, "
            f"got {type(model).__name__}"
        )
    return LogDensityField(model, feature_axes=0, check_smoothness=False)


def _evaluate(
    question: Callable[[Tensor], Tensor], model: Any, x: Array, like: Any, shape: tuple[int, ...]
) -> Array:
    """The answers of a model at points, of the given shape: not those of several features."""
    example = _example(model, like)
    # A copy, since the memory of a data frame may be read-only.
    batches = torch.tensor(x).to(example).split(_BATCH_SIZE)
    with torch.no_grad():
        found = torch.cat([question(batch) for batch in batches])
    advice = "end a one-column network with .squeeze(-1)"
    check_shape(found, shape, "the model must have one log-density per point, answers {}", advice)
    return found.double().cpu().numpy()


def _example(model: Any, like: Any) -> Tensor:
    """A tensor with the dtype and on the device that a model wants."""
    if isinstance(like, Tensor) and like.is_floating_point():
        return like[:0]
    call = model.model.call if isinstance(model, Field) else model
    owner = owner_of(call)
    if isinstance(owner, nn.Module):
        found = next((p for p in owner.parameters() if p.is_floating_point()), None)
        if found is not None:
            return found.detach()
    return torch.empty(0, dtype=torch.float64)

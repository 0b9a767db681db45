"""Parametric models: a log-density as a function of named parameters and points."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scorematching._checks import check_initialised, dates_in
from scorematching.fields import Field, LogDensityField, VectorField, is_normalised

Theta = dict[str, Tensor]
"""Parameters by name."""


def none_of(theta: Theta) -> Sequence[str]:
    """No parameter."""
    return ()


@dataclass(frozen=True, eq=False)
class Parametric:
    """A model whose parameters are one flat vector ``(P,)`` of float64 numbers.

    Attributes:
        call: ``(theta, x) -> (N,)``, or ``(N, *event)`` for a score network.
        shapes: of the parameters, by name.
        names: of the P numbers, such as ``"mean[0]"``.
        start: initial values ``(P,)``.
        label: name of the model.
        vector: whether the model is a score network.
        too_steep: names of estimates with which the model has no finite integral.
        normalised: False if the model says that its integral is not one.
    """

    call: Callable[[Theta, Tensor], Tensor]
    shapes: dict[str, torch.Size]
    names: tuple[str, ...]
    start: Tensor
    label: str
    vector: bool = False
    too_steep: Callable[[Theta], Sequence[str]] = none_of
    normalised: bool = True

    def unflatten(self, flat: Tensor) -> Theta:
        """The vector of all numbers as named parameters."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.reshape(s) for (name, s), part in zip(self.shapes.items(), parts)}

    def at(self, flat: Tensor) -> Callable[[Tensor], Tensor]:
        """The model with these parameters, a function of points."""
        theta = self.unflatten(flat)
        return lambda x: self.call(theta, x)

    def field(self, call: Callable[[Tensor], Tensor], checked: bool = False) -> Field:
        """A field that is differentiated by autograd, as often as needed."""
        options: Any = {} if checked else {"check_smoothness": False, "route": "reverse"}
        return VectorField(call, **options) if self.vector else LogDensityField(call, 0, **options)


def parametric(model: Any, start: Any) -> Parametric:
    """A model of the user's as a `Parametric`.

    Args:
        model: an `nn.Module`, a field around one, or a function ``f(theta, x)``.
        start: initial values by name; for a module None means its present parameters.
    """
    vector = isinstance(model, VectorField)
    if isinstance(model, Field):
        model = model.model.call
    if isinstance(model, nn.Module):
        return _of_module(model, start, vector)
    if not callable(model):
        raise TypeError(
            "model must be an nn.Module or a function f(theta, x), got "
            f"{type(model).__name__}; write the log-density as a function of parameters and points"
        )
    if not isinstance(start, Mapping) or not start:
        raise ValueError(
            "start must be a dict of initial values by parameter name for a model that is a "
            f"function f(theta, x), got {start!r}; pass start={{'mean': 0.0, ...}}"
        )
    if not all(isinstance(name, str) for name in start):
        raise TypeError(
            f"start must have text as names of parameters, got {list(start)[:5]}, which results "
            "could not tell from positions; write {'a': 0.0} and theta['a']"
        )
    values = {name: as_float64(value, f"start[{name!r}]") for name, value in start.items()}
    label = getattr(model, "__name__", type(model).__name__)
    return _assemble(partial(_call_function, model), values, {}, label, vector)


def _of_module(module: nn.Module, start: Any, vector: bool) -> Parametric:
    check_initialised([*module.parameters(), *module.buffers()])
    own = copy.deepcopy(module).cpu().double()
    values = {n: p.detach().clone() for n, p in own.named_parameters() if p.requires_grad}
    if not values:
        raise ValueError(
            "model must have parameters that need gradients, got none; set requires_grad on them"
        )
    if start is not None and not isinstance(start, Mapping):
        raise TypeError(
            "start must be a dict of initial values by parameter name, got "
            f"{type(start).__name__}; the names are {sorted(values)}"
        )
    for name, value in (start or {}).items():
        values[name] = _replacement(name, value, values)
    entries: Mapping[str, Sequence[str]] = getattr(module, "entry_names", dict)()
    call = partial(_call_module, own)
    found = _assemble(call, values, entries, type(module).__name__, vector)
    return replace(
        found, too_steep=getattr(own, "too_steep", none_of), normalised=is_normalised(own)
    )


def _call_function(function: Callable[..., Tensor], theta: Theta, x: Tensor) -> Tensor:
    """A function of the user's; its errors say how it is called."""
    try:
        return function(theta, x)
    except (AttributeError, LookupError, TypeError) as error:
        error.add_note(f"model is called as f(theta, x), with theta a dict of {sorted(theta)}")
        raise


def _call_module(module: nn.Module, theta: Theta, x: Tensor) -> Tensor:
    """A module with other parameters; not a closure, so that results can be pickled."""
    result: Tensor = torch.func.functional_call(module, theta, (x,))
    return result


def _replacement(name: str, value: Any, values: Theta) -> Tensor:
    if name not in values:
        raise ValueError(
            f"start must name parameters of the model, got {name!r}; they are {sorted(values)}"
        )
    found = as_float64(value, f"start[{name!r}]")
    if found.shape != values[name].shape:
        raise ValueError(
            f"start[{name!r}] must have shape {tuple(values[name].shape)}, got "
            f"{tuple(found.shape)}; give one number per entry"
        )
    return found


def _assemble(
    call: Any, values: Theta, entries: Mapping[str, Sequence[str]], label: str, vector: bool
) -> Parametric:
    names = [
        entry
        for name, value in values.items()
        for entry in entries.get(name) or _entries(name, value.shape)
    ]
    flat = torch.cat([value.reshape(-1) for value in values.values()])
    shapes = {name: value.shape for name, value in values.items()}
    return Parametric(call, shapes, tuple(names), flat, label, vector)


def _entries(name: str, shape: torch.Size) -> Iterator[str]:
    """``a`` for a number, ``a[0]`` for a vector, ``a[0,1]`` for a matrix."""
    if not shape:
        yield name
        return
    for index in product(*map(range, shape)):
        yield f"{name}[{','.join(map(str, index))}]"


def _columns_without_numbers(table: Any) -> list[str]:
    """Names of the columns of a data frame that hold text or the like."""
    bad = []
    for i, name in enumerate(table.columns if hasattr(table, "iloc") else ()):
        try:
            _as_array(table.iloc[:, [i]])
        except (TypeError, ValueError):
            bad.append(repr(name))
    return bad


def as_float64(value: Any, name: str) -> Tensor:
    """Numbers of any kind as a float64 tensor on the CPU."""
    _refuse_dates(value, name)
    try:
        plain = _detached(value)
        is_real = not np.iscomplexobj(plain)
        found = torch.from_numpy(_as_array(plain)) if is_real else None
    except (TypeError, ValueError) as error:
        bad = _columns_without_numbers(value)
        where = (
            f" with something else in {', '.join(bad[:5])}; leave these columns out" if bad else ""
        )
        raise TypeError(
            f"{name} must be numbers (a tensor, an array, a table or a list), got "
            f"{type(value).__name__}{where or '; convert it to floating point'}"
        ) from error
    if found is None:
        raise TypeError(f"{name} must be real numbers, got complex ones; take their parts apart")
    _refuse_disguised(plain, name)
    return found


def _as_array(value: Any) -> Any:
    """Numbers as a new float64 array, with NaN for pandas' NA, which numpy does not convert."""
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        if not hasattr(value, "isna"):
            raise
        known = np.where(value.isna(), np.nan, np.asarray(value, dtype=object))
        return known.astype(np.float64)


def _refuse_disguised(value: Any, name: str) -> None:
    """Refuse masked entries, and dates in lists, which numpy converts to numbers."""
    if np.ma.is_masked(value):
        raise ValueError(
            f"{name} must have no masked entries, got {np.ma.count_masked(value)}; drop these "
            f"rows, or mark entries as missing with {name}.filled(numpy.nan)"
        )
    _refuse_dates(np.asarray(value), name)


def _refuse_dates(value: Any, name: str) -> None:
    """Refuse dates and durations, which are converted to numbers in a unit that nobody chose.

    Pandas converts those with a time zone, too, which numpy takes for objects.
    """
    where, dtype = dates_in(value)
    if dtype is not None:
        raise TypeError(
            f"{name} must be numbers, got dates or durations{where}; divide durations by a unit, "
            'such as numpy.timedelta64(1, "D")'
        )


def column_names(X: Any) -> tuple[Any, ...] | None:
    """Names of the columns of a data frame; None if there are none."""
    return tuple(getattr(X, "columns", ())) or None


def in_order(X: Any, columns: tuple[Any, ...] | None) -> Any:
    """A data frame with columns in the order of those of the fit; anything else as it is.

    Names that are numbers, as ``pandas.DataFrame(X)`` has them, are not compared with text.

    Raises:
        ValueError: if it has other columns.
    """
    given = column_names(X)
    if columns is None or given is None or given == columns:
        return X
    if isinstance(given[0], str) != isinstance(columns[0], str):
        return X
    if set(given) != set(columns) or len(given) != len(columns):
        raise ValueError(
            f"X must have the columns of the fit, {[*columns][:5]}, got {[*given][:5]}; rename or "
            "select them"
        )
    return X[list(columns)]


def _detached(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value

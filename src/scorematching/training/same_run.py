"""Whether a resumed run has the arguments of the run in its folder.

Arguments are described in JSON, by what is the same in every process: numbers and names. Settings
are the fields of dataclasses, such as every `Objective` of the package, and the arguments of
`functools.partial`; other settings are refused. A function has only its name, which may change
without another meaning; another name gives a warning.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scorematching.training.alternating import Alternating
from scorematching.training.data import compare_points, summarise

logger = logging.getLogger("scorematching.training")

_SAME_STEPS = {"foreach", "fused", "capturable", "differentiable", "max_memory"}
"""Settings of optimisers and objectives that change how a step is computed, not the step."""

_LISTED = 100
"""Entries of the largest tensor that is written out."""

_ROUNDING = 1e-5
"""Differences between equal settings, relative to the largest number among them."""

_POINTS = "Tensor"
"""The class of held-out points."""


def describe_run(
    optimizer: torch.optim.Optimizer,
    objective: Any,
    validation: Any,
    validation_objective: Any,
    transform: Any,
) -> dict[str, Any]:
    """The arguments of `train` that a resumed run must share, in JSON."""
    held_out = describe(validation)
    if isinstance(validation, Tensor):
        held_out = {"class": _POINTS, "points": summarise(validation)}
    return {
        "objective": describe(objective),
        "validation_objective": describe(validation_objective),
        "transform": describe(transform),
        "optimizer": [
            {k: describe(v) for k, v in group.items() if k != "params"}
            for group in optimizer.param_groups
        ],
        "validation": held_out,
    }


def describe(value: Any) -> Any:
    """A value in JSON; of functions and of classes without declared settings the name.

    Example:
        >>> from scorematching import DenoisingScoreMatching
        >>> describe(DenoisingScoreMatching(sigma=0.1))
        {'class': 'DenoisingScoreMatching', 'sigma': 0.1, 'control_variate': False}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        size = math.prod(value.shape)
        return describe(value.tolist()) if size <= _LISTED else {"shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        return [describe(part) for part in value]
    if isinstance(value, partial):
        given = {"arguments": describe(value.args)} if value.args else {}
        return {**_callable(value.func), **given, **_described(value.keywords)}
    return _callable(value)


def _callable(value: Any) -> dict[str, Any]:
    """A function or an object of a class, with the settings it declares."""
    if isinstance(name := getattr(value, "__name__", None), str):
        return {"function": name}
    about = {"class": type(value).__name__}
    if isinstance(value, Alternating):
        return {**about, "phases": describe(value.phases)}
    if not is_dataclass(value):
        return about
    return about | _described({f.name: getattr(value, f.name) for f in fields(value) if f.init})


def _described(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: describe(setting) for name, setting in settings.items()}


def require_same(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
    """Require the arguments of the run in a checkpoint; None if not known, as of earlier versions.

    Raises:
        ValueError: names the argument, and what has changed.
    """
    if before is None:
        return
    for name, new in now.items():
        old: Any = before.get(name)
        if name == "validation" and old is None:
            continue  # a run may begin to validate
        if _name(new) == _name(old) == _POINTS:
            compare_points(name, new["points"], old["points"])
            continue
        changes = list(_changes(new, old, ""))
        words = ", ".join(f"{c.path}{c.now} (was {c.before})" for c in changes)
        if any(change.is_certain for change in changes):
            raise ValueError(
                f"{name} must be that of the run that is resumed, got {words}; begin another run "
                "in another folder"
            )
        if changes:
            logger.warning(
                "%s is not that of the run that is resumed by its name, %s; if it computes "
                "something else, begin another run in another folder",
                name,
                words,
            )


class _Change(NamedTuple):
    """A difference; one of names of functions need not be one of what they compute."""

    path: str
    now: Any
    before: Any
    is_certain: bool = True


def _changes(now: Any, before: Any, path: str) -> Iterator[_Change]:
    """The differences between two descriptions; settings of other versions are left out."""
    if isinstance(now, dict) and isinstance(before, dict):
        names = _name(now), _name(before)
        if names[0] != names[1]:
            functions = "function" in {**now, **before} and _POINTS not in names
            yield _Change(path and f"{path}=", *names, is_certain=not functions)
            return
        for key in (k for k in now if k in before and k not in _SAME_STEPS):
            yield from _changes(now[key], before[key], f"{path}.{key}" if path else key)
    elif _are_numbers(now, before):
        if not _are_close(now, before):
            yield _Change(path and f"{path}=", now, before)
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        for i, pair in enumerate(zip(now, before)):
            yield from _changes(*pair, f"{path}[{i}]")
    elif now != before:
        yield _Change(path and f"{path}=", _name(now) or now, _name(before) or before)


def _are_numbers(*values: Any) -> bool:
    """Whether values are numbers, or lists of as many numbers."""
    if all(isinstance(value, (int, float)) for value in values):
        return True
    lists = all(isinstance(value, list) for value in values)
    return lists and len(set(map(len, values))) == 1 and all(map(_are_numbers, *values))


def _are_close(a: Any, b: Any) -> bool:
    """Whether numbers are equal up to rounding, as by another machine that fitted them again."""
    x, y = (torch.tensor(value, dtype=torch.float64).reshape(-1) for value in (a, b))
    size = y[y.isfinite()].abs().amax().item() if bool(y.isfinite().any()) else 0.0
    return torch.allclose(x, y, rtol=0, atol=_ROUNDING * size, equal_nan=True)


def _name(about: Any) -> Any:
    """The name of a class or function; None of anything else."""
    return about.get("class", about.get("function")) if isinstance(about, dict) else None

"""Run the library on an entry of the zoo and say what came of it."""

from __future__ import annotations

import linecache
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import scorematching as sm
from tests.zoo.entry import Entry, Model, seeded, settings
from tests.zoo.truth import Truth, measure

TOLERANCE = 1e-5
"""Relative difference from the truth that counts as right, beside the error of the truth."""

MAX_DOUBT = 1e-3
"""A truth less certain than this decides nothing, and the entry has to be repaired."""

USES = 4
"""How often a model is trained on: compiled and scripted code may change from call to call."""

FOLLOWED, SLOW, SILENT = "followed", "slow route, stated", "slow route, not stated"
REFUSED, REFUSED_WRONGLY = "refused rightly", "refused wrongly"
ACCEPTED_WRONGLY, WRONG, CRASHED = "accepted wrongly", "silently wrong", "crashed"
UNSURE, SKIPPED = "no truth", "not installed"
OUTCOMES = (
    FOLLOWED,
    SLOW,
    REFUSED,
    SILENT,
    REFUSED_WRONGLY,
    ACCEPTED_WRONGLY,
    WRONG,
    CRASHED,
    UNSURE,
    SKIPPED,
)
GOOD = (FOLLOWED, SLOW, REFUSED, SKIPPED)


@dataclass
class Result:
    """One line of the table."""

    library: str
    name: str
    verdict: str
    why: str = ""
    kind: str = ""
    outcome: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    doubt: float = 0.0
    seconds: float = 0.0
    explained: str = ""
    note: str = ""


class TimedOut(Exception):
    """An entry took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` after some seconds of this process's own time, whatever else runs."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimedOut(f"more than {seconds} s")

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def examine(entry: Entry, limit: float = 120) -> Result:
    """Measure the truth on one copy of a model, ask the library about another, compare."""
    result = Result(entry.library, entry.name, entry.verdict, entry.why)
    with settings(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with time_limit(limit):
                _examine(entry, result, told)
        except TimedOut as error:
            result.outcome, result.note = CRASHED, str(error)
        except Exception as error:
            result.outcome, result.note = UNSURE, f"the entry itself fails: {short(error)}"
    return result


def _examine(entry: Entry, result: Result, told: list[warnings.WarningMessage]) -> None:
    model = entry.fresh()
    result.kind = model.kind
    v = signs(model.x)
    truth = _truth(entry, model, v, result)
    told.clear()
    model = entry.fresh()
    start = time.process_time()
    try:
        errors = compare(model, v, truth)
    except TimedOut:
        raise
    except Exception as error:
        result.note = short(error)
        result.outcome = _refusal(entry) if is_refusal(error) else CRASHED
    else:
        result.errors = errors
        result.outcome = _verdict(entry, truth, errors)
    result.seconds = time.process_time() - start
    said = list(told)
    result.explained = conclusion(model)
    if not result.outcome:
        result.outcome, result.note = route_taken(model, v, truth, said)


def _truth(entry: Entry, model: Model, v: Tensor, result: Result) -> Truth | None:
    if entry.verdict in ("kinked", "coupled"):
        return None
    truth = measure(model, v)
    result.doubt = truth.doubt
    return truth


def signs(x: Tensor) -> Tensor:
    """Independent signs, ``(N, *event)``."""
    draws = torch.rand(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    return torch.where(draws < 0.5, -1.0, 1.0).to(x)


def compare(
    model: Model, v: Tensor, truth: Truth | None, uses: int = USES, **options: Any
) -> dict[str, float]:
    """Relative errors of what the library answers; only run it where there is no truth."""
    kind = sm.LogDensityField if model.kind == "density" else sm.VectorField
    wrapped = kind(model.call, **options)
    errors: dict[str, float] = {}
    for _ in range(uses):
        loss, gradient = seeded(train_once)(wrapped, model, v)
        if truth is not None:
            _worst(errors, "loss", truth.loss.distance(loss))
            _worst(errors, "gradient", truth.gradient.distance(gradient))
        model.x.grad = None
    with torch.no_grad():
        score, curvature = seeded(wrapped.score_and_curvature)(model.x, v[None])
        if truth is not None:
            errors["score"] = truth.score.distance(score)
            errors["curvature"] = truth.curvature.distance(curvature)
        if truth is not None and truth.divergence is not None:
            _, divergence = seeded(wrapped.score_and_divergence)(model.x)
            errors["divergence"] = truth.divergence.distance(divergence)
    return errors


def _worst(errors: dict[str, float], name: str, error: float) -> None:
    errors[name] = max(error, errors.get(name, 0.0))


def train_once(wrapped: sm.Field, model: Model, v: Tensor) -> tuple[Tensor, Tensor]:
    """Losses of sliced score matching, and the gradient of their mean in the parameters, flat."""
    loss = sm.SlicedScoreMatchingVR().loss(wrapped, model.x, v[None])
    parameters = [p for p in model.parameters if p.requires_grad]
    if not parameters:
        return loss, torch.zeros(1)
    grads = torch.autograd.grad(loss.mean(), parameters, allow_unused=True)
    zeros = [torch.zeros_like(p) for p in parameters]
    return loss, torch.cat([(z if g is None else g).flatten() for g, z in zip(grads, zeros)])


def _verdict(entry: Entry, truth: Truth | None, errors: dict[str, float]) -> str:
    """The outcome of a model that was accepted; empty where its answers are right."""
    if truth is None:
        return ACCEPTED_WRONGLY
    if not truth.doubt < MAX_DOUBT:
        return UNSURE
    return "" if is_right(truth, errors) else WRONG


def is_right(truth: Truth, errors: dict[str, float]) -> bool:
    """Whether every error is within the tolerance and the truth's own error."""
    return all(error <= TOLERANCE + 5 * truth.doubt for error in errors.values())


def _refusal(entry: Entry) -> str:
    return REFUSED_WRONGLY if entry.verdict == "smooth" else REFUSED


def route_taken(
    model: Model, v: Tensor, truth: Truth | None, told: list[warnings.WarningMessage]
) -> tuple[str, str]:
    """Which route gave right answers, and what was said or raised about it."""
    stated = [str(w.message) for w in told if w.category.__name__ == "PerformanceWarning"]
    if stated:
        return SLOW, stated[0].splitlines()[0]
    try:
        errors = compare(model, v, truth, 1, route="traced", check_smoothness=False)
    except TimedOut:
        raise
    except Exception as error:
        return SILENT, short(error)
    right = truth is not None and is_right(truth, errors)
    return (FOLLOWED, "") if right else (SILENT, "wrong when traced")


def is_refusal(error: Exception) -> bool:
    """Whether the library raised an error on purpose: by a raise statement in its own code."""
    if isinstance(error, sm.SmoothnessError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno or 0)
    deliberate = not isinstance(error, NotImplementedError) and "raise" in line
    return raised_by_library(error) and deliberate


def raised_by_library(error: Exception) -> bool:
    """Whether the error came from a line of the library, rather than of torch or the model."""
    return "/scorematching/" in traceback.extract_tb(error.__traceback__)[-1].filename


def conclusion(model: Model) -> str:
    """What `explain` says about the model."""
    kind: Callable[..., sm.Field] = (
        sm.LogDensityField if model.kind == "density" else sm.VectorField
    )
    try:
        text = sm.explain(kind(model.call), model.x, show=False).conclusion
        return text.splitlines()[0]
    except TimedOut:
        raise
    except Exception as error:
        return f"explain raised {short(error)}"


def short(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:150]}"

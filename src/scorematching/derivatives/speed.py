"""The faster of two right routes, measured where tracing may be slow."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from scorematching.derivatives import verification
from scorematching.derivatives.memory import Findings
from scorematching.derivatives.model import Model, Question, Way

SLOWER, CLEARLY = 2.0, 4.0
"""Time of a trace, relative to double backward, that is too long, and that noise does not explain.

The two routes differ in rounding. With a smaller limit, noise in the times would often decide, and
the last digits of a run would change when it is repeated or resumed.
"""


def may_be_slow(findings: Findings) -> bool:
    """Whether the trace met operations without a closed rule, such as recurrent cells."""
    return any(kind in ("decomposed", "nested jvp") for _, kind in findings.operations)


def choose_faster(
    model: Model, question: Question, x: Tensor, arguments: Any, findings: Findings
) -> None:
    """Take double backward where it is much faster; both routes have been found right.

    Where two measurements do not tell clearly, three more are made, and the fastest of each count.
    """
    if findings.routes.get(question.name) == "reverse":
        return
    with suppress(Exception):  # a route may not exist for this model, or not at these points
        ratio = _ratio(model, question, x, arguments, 2)
        if 1 < ratio < CLEARLY:
            ratio = _ratio(model, question, x, arguments, 3)
        if ratio > SLOWER:
            findings.routes[question.name] = "reverse"


def _ratio(model: Model, question: Question, x: Tensor, arguments: Any, repeats: int) -> float:
    """The time by tracing relative to that by double backward, in turns, because machines vary."""
    ways = (question.traced, question.reverse)
    seconds = [[_seconds(model, way, x, arguments) for way in ways] for _ in range(repeats)]
    traced, reverse = map(min, zip(*seconds))
    return traced / reverse


def _seconds(model: Model, way: Way, x: Tensor, arguments: Any) -> float:
    """The time of an answer and of its gradient, in the parameters where it has any."""
    with verification.undone(model.call, x):
        start = now(x)
        score, second = way(model, x, *arguments)
        value = second.sum() + score.square().sum()
        found = now(x)
        if not value.requires_grad:
            return found - start
        sources = verification.leaves(value, x, since=0) or [x]
        begin = now(x)
        torch.autograd.grad(value, sources, allow_unused=True)
        return found - start + now(x) - begin


def now(x: Tensor) -> float:
    """The time after all work on the device of x, in seconds."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()

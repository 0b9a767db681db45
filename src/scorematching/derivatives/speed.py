"""The faster of two right routes, measured where tracing may be slow."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from scorematching.derivatives import verification
from scorematching.derivatives.memory import Findings
from scorematching.derivatives.model import Model
from scorematching.derivatives.question import Question, Way


def may_be_slow(findings: Findings) -> bool:
    """Whether the trace met operations without a closed rule, such as recurrent cells."""
    return any(kind in ("decomposed", "nested jvp") for _, kind in findings.operations)


def choose_faster(
    model: Model, question: Question, x: Tensor, arguments: Any, findings: Findings
) -> None:
    """Take double backward where it is much faster; both routes have been found right."""
    if findings.routes.get(question.name) == "reverse":
        return
    with suppress(RuntimeError):  # double backward may not exist for this model
        traced, reverse = (
            min(_seconds(model, way, x, arguments) for _ in range(2))
            for way in (question.traced, question.reverse)
        )
        if traced > 2 * reverse:
            findings.routes[question.name] = "reverse"


def _seconds(model: Model, way: Way, x: Tensor, arguments: Any) -> float:
    """The time of an answer and of its gradient."""
    with verification.undone(model.call, x):
        start = time.perf_counter()
        score, second = way(model, x, *arguments)
        value = second.sum() + score.square().sum()
        if value.requires_grad:
            torch.autograd.grad(value, x, allow_unused=True)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        return time.perf_counter() - start

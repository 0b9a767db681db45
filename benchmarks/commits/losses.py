"""The losses of the library that is imported when this module is, as steps to be timed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

import scorematching as sm
from benchmarks.harness.timing import Step
from benchmarks.objectives.contenders import gradient_step, ours
from benchmarks.objectives.models import CASES, QUICK_CASES, Case
from benchmarks.objectives.steps import adam, objectives, prepare

NUMS = (1, 4, 16)


def losses(device: str, quick: bool) -> Iterator[tuple[str, Step]]:
    """The losses of this library that `benchmarks.objectives` times, by name.

    On a GPU the time of an eager step is that of its launches, so whole training steps follow that
    are CUDA graphs: their time is that of the operations.
    """
    for case in QUICK_CASES if quick else CASES:
        model, x = case.make(0, device)
        field = sm.VectorField(model) if case.vector else model
        for contender in ours(field, x, NUMS):
            yield f"{case.name} {contender.label}", gradient_step(contender, model)
        if case.exact:
            yield f"{case.name} exact", _exact_step(case, model, x)
        if device == "cuda":
            yield from captured(case, model, x)


def _exact_step(case: Case, model: Any, x: torch.Tensor) -> Step:
    objective, points = sm.ScoreMatching(), x[: case.exact]

    def step() -> None:
        model.zero_grad(set_to_none=True)
        objective(model, points).mean().backward()

    return step


def captured(case: Case, model: Any, x: torch.Tensor) -> Iterator[tuple[str, Step]]:
    """Training steps that are CUDA graphs on a GPU, by name; on a CPU they run eagerly."""
    for (library, name, num), objective in objectives(NUMS).items():
        if library == "ours":
            own = copy.deepcopy(model)
            target: Any = sm.VectorField(own) if case.vector else own
            _, step = prepare("captured", target, objective, adam(own), x)
            yield f"{case.name} captured {name} M={num}", step

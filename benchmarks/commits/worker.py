"""A process that times the losses of one version of the library, on request.

The version is the one that PYTHONPATH names. Requests are lines ``loss steps`` on standard input,
answers are seconds per step on standard output; the first answer lists the losses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import scorematching as sm
from benchmarks.harness.timing import Step, seconds_of
from benchmarks.objectives.contenders import gradient_step, ours
from benchmarks.objectives.models import CASES, QUICK_CASES, Case

NUMS = (1, 4, 16)


def serve(device: str, quick: bool) -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    steps = dict(losses(device, quick))
    print(json.dumps(list(steps)), flush=True)
    for line in sys.stdin:
        name, repeats = json.loads(line)
        step = steps[name]
        step()  # the caches hold another loss
        print(seconds_of(partial(_repeat, step, repeats), device) / repeats, flush=True)


def losses(device: str, quick: bool) -> Iterator[tuple[str, Step]]:
    """The losses of this library that `benchmarks.objectives` times, by name."""
    for case in QUICK_CASES if quick else CASES:
        model, x = case.make(0, device)
        field = sm.VectorField(model) if case.vector else model
        for contender in ours(field, x, NUMS):
            yield f"{case.name} {contender.label}", gradient_step(contender, model)
        if case.exact:
            yield f"{case.name} exact", _exact_step(case, model, x)


def _exact_step(case: Case, model: Any, x: torch.Tensor) -> Step:
    objective, points = sm.ScoreMatching(), x[: case.exact]

    def step() -> None:
        model.zero_grad(set_to_none=True)
        objective(model, points).mean().backward()

    return step


def _repeat(step: Step, repeats: int) -> None:
    for _ in range(repeats):
        step()


if __name__ == "__main__":
    serve(device=sys.argv[1], quick="quick" in sys.argv[2:])

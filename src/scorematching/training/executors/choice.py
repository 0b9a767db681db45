"""The choice of an executor, and what to do when one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_type
from scorematching._graphs import CaptureError
from scorematching.training.executors.captured import Captured, make_capturable
from scorematching.training.executors.compiled import CompiledGradients, NoGain
from scorematching.training.executors.update import compiled_update
from scorematching.training.losses import LossModule
from scorematching.training.ranks import Ranks
from scorematching.training.sharing import SharedGradients
from scorematching.training.step import Step

logger = logging.getLogger("scorematching.training")

EXECUTORS = ("eager", "captured", "compiled", "compiled+captured")

COMPILE_FROM = 1000
"""Least number of steps for which "auto" compiles: it takes as long as thousands of steps."""


def preferences(
    executor: str | Sequence[str], device: torch.device, static: bool, steps: int
) -> tuple[str, ...]:
    """Names of executors, the preferred one first.

    "auto" on a GPU is "compiled+captured" (from `COMPILE_FROM` steps on, and where that is faster),
    then "captured", then "eager"; on a CPU, and where batches differ in shape (``static=False``),
    it is "eager".

    Example:
        >>> preferences("auto", torch.device("cuda"), static=True, steps=10_000)
        ('compiled+captured', 'captured', 'eager')
    """
    if executor == "auto":
        if device.type != "cuda" or not static:
            return ("eager",)
        return ("compiled+captured", "captured", "eager")[0 if steps >= COMPILE_FROM else 1 :]
    names = (executor,) if isinstance(executor, str) else tuple(executor)
    if not names or not set(names) <= set(EXECUTORS):
        raise ValueError(
            f'executor must be "auto", one of {EXECUTORS}, or several of these in order of '
            f'preference, got {executor!r}; "auto" suits most runs'
        )
    return names


def choose(
    names: Sequence[str],
    step: Step,
    losses: LossModule,
    ranks: Ranks,
    report: Callable[[str, str], None] = lambda name, reason: None,
    steps: int = COMPILE_FROM,
) -> Fallback:
    """The first of several executors that can run a step here, with the others to fall back on.

    The preferred executor is the first of the names. ``report`` is called with the name of an
    executor that replaces another, and the reason. Compilation must pay off within so many steps,
    unless it is the last that is left.

    Raises:
        ValueError: if none can.
    """
    reasons = {name: _obstacle(name, step, ranks) for name in names}
    possible = [name for name in names if not reasons[name]]
    for name in set(names) - set(possible):
        logger.info('executor "%s" is not used: %s', name, reasons[name])
    if not possible:
        reason = "; ".join(f'"{name}" {reasons[name]}' for name in names)
        raise ValueError(
            f'executor must be one that can run here: {reason}; "auto" picks one that can'
        )
    if any("captured" in name for name in possible):
        make_capturable(step.optimizer)
    return Fallback(possible, partial(_make, step, losses, possible[-1], steps), report)


class Fallback:
    """Runs steps by the first executor that works.

    One that fails leaves weights, optimiser and generator as they were: it fails before its first
    step, or when a step is recorded, which does not run it. The next one repeats the step.

    Attributes:
        name: the executor in use.
    """

    def __init__(
        self, names: Sequence[str], make: Callable[[str], Any], report: Callable[[str, str], None]
    ) -> None:
        self.left, self.make, self.report = list(names), make, report
        self._use_next()

    def __call__(self, batch: Any) -> Tensor:
        """One step on a batch; returns its mean loss, detached."""
        while True:
            try:
                self._check(batch)
                self.executor.prepare(batch)
            except Exception as error:
                self._replace(error)
                continue
            try:
                loss: Tensor = self.executor(batch)
                return loss
            except CaptureError as error:
                self._replace(error)

    def _check(self, batch: Any) -> None:
        if self.name != "eager":
            wanted = f"batches must be tensors for steps to be {self.name}"
            check_type(batch, Tensor, wanted, 'use executor="eager"')

    def _replace(self, error: Exception) -> None:
        """Continue with the next executor; if there is none, raise the error."""
        if not self.left:
            raise error
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        failed, declined = self.name, isinstance(error, NoGain)
        self._use_next()
        say = logger.info if declined else logger.warning
        verb = "does not pay off" if declined else "failed"
        say('executor "%s" %s, continuing with "%s": %s', failed, verb, self.name, reason)
        self.report(self.name, reason)

    def _use_next(self) -> None:
        self.name = self.left.pop(0)
        self.executor = self.make(self.name)
        logger.info('executor: "%s"', self.name)


def _make(step: Step, losses: LossModule, last: str, steps: int, name: str) -> Any:
    """An executor by name; ``last`` is the one after which there is none."""
    if "compiled" in name:
        gradients = CompiledGradients(losses, None if name == last else steps)
        step = step.using(gradients, compiled_update(step.optimizer))
    if "captured" not in name:
        return step
    return Captured(step, losses.generator, holders=losses.holders)


def _obstacle(name: str, step: Step, ranks: Ranks) -> str:
    """Why an executor cannot be used; empty if it can."""
    if name == "eager":
        return ""
    if isinstance(step.gradients, SharedGradients):
        return f"needs a single process and accumulate=1, got {ranks.count} processes"
    if name == "compiled":
        return ""
    if ranks.device.type != "cuda":
        return f"needs a CUDA device, got {ranks.device}"
    if not all("capturable" in group for group in step.optimizer.param_groups):
        return f"needs a capturable optimiser such as Adam, got {type(step.optimizer).__name__}"
    return ""

"""The update of an optimiser by a compiled function.

Optimisers without a fused update, such as RMSprop, take one pass over all weights for each of their
operations. Compiled, they take one pass in all.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as hooks

from scorematching.training.executors.captured import expect_steps_without_graph

logger = logging.getLogger("scorematching.training")


def compiled_update(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The update of an optimiser, compiled where that helps; otherwise ``optimizer.step``."""
    return CompiledUpdate(optimizer) if _gains(optimizer) else lambda: optimizer.step()


def _gains(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an update is one of torch's own, not fused, without hooks, at rates in tensors.

    A rate that is a number would be a constant, for which each new rate is compiled anew.
    """
    groups = optimizer.param_groups
    tensors = all(isinstance(group["lr"], Tensor) for group in groups)
    own = type(optimizer).__module__.startswith("torch.optim.")
    fused = any(group.get("fused") for group in groups)
    return own and tensors and not fused and not _has_hooks(optimizer)


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether anything is called before or after an update of this optimiser, or of all."""
    mine = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(mine or hooks._global_optimizer_pre_hooks or hooks._global_optimizer_post_hooks)


class CompiledUpdate:
    """``optimizer.step()`` compiled, for each set of parameters that have a gradient.

    The first update of each set is done by a copy of the optimiser as well. Where the weights
    differ, or where compilation fails, the optimiser itself is used, from that update on.

    Args:
        optimizer: with its learning rates as tensors.

    Attributes:
        ways: what updates each set of parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.compiled: Callable[[], Any] = torch.compile(_plain_step(optimizer), dynamic=False)
        self.ways: dict[tuple[bool, ...], Callable[[], Any]] = {}

    def __call__(self) -> None:
        """Update the parameters that have a gradient."""
        key = tuple(p.grad is not None for p in self.parameters)
        if key in self.ways:
            self.ways[key]()
        else:
            self.ways[key] = self._compare()
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedules ask for it

    def _compare(self) -> Callable[[], Any]:
        """Do the first update; returns what does the others."""
        twin = self._updated_copy()
        try:
            self.compiled()
            failure = "" if _agree(self.optimizer, twin) else "it differs"
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        if not failure:
            return self.compiled
        logger.info("the update of the optimiser is not compiled: %s", failure)
        _become(self.optimizer, twin)
        return self.optimizer.step

    def _updated_copy(self) -> torch.optim.Optimizer:
        """A copy of the optimiser and its parameters, after the update."""
        twin = copy.deepcopy(self.optimizer)
        for p, original in zip(_parameters(twin), self.parameters, strict=True):
            p.grad = original.grad
        expect_steps_without_graph(twin)
        _plain_step(twin)()
        return twin


def _plain_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The update itself.

    Not what a schedule replaced it with, and without the wrapper of torch, which calls hooks and
    names the update for profilers.
    """
    step: Any = type(optimizer).step
    return MethodType(step.__wrapped__ if hasattr(step, "hooked") else step, optimizer)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _agree(found: torch.optim.Optimizer, expected: torch.optim.Optimizer) -> bool:
    """Whether parameters and states are equal up to the rounding of fused operations."""
    a, b = _tensors(found), _tensors(expected)
    return len(a) == len(b) and all(
        torch.allclose(x, y, rtol=1e-4, atol=1e-7, equal_nan=True) for x, y in zip(a, b)
    )


def _tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters and what the optimiser keeps of them, in order."""
    states = [optimizer.state.get(p, {}) for p in _parameters(optimizer)]
    kept = [state[name] for state in states for name in sorted(state)]
    return [*_parameters(optimizer), *(value for value in kept if isinstance(value, Tensor))]


@torch.no_grad()
def _become(optimizer: torch.optim.Optimizer, twin: torch.optim.Optimizer) -> None:
    """Give an optimiser the weights and the state of its copy."""
    for p, other in zip(_parameters(optimizer), _parameters(twin), strict=True):
        p.copy_(other)
        if other in twin.state:
            optimizer.state[p] = twin.state[other]

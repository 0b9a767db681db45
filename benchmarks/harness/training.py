"""Training steps without the loop around them: their time, and what a GPU does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.kernels import account
from scorematching.training import LossModule
from scorematching.training.executors import choose
from scorematching.training.ranks import Ranks
from scorematching.training.step import Gradients, Step


def bare_step(
    losses: LossModule, optimizer: torch.optim.Optimizer, executor: str, batch: Tensor
) -> Callable[[], Tensor]:
    """The step of `train` on one batch, by an executor."""
    step = Step(Gradients(losses), optimizer, losses.parts)
    execute = choose([executor], step, losses, Ranks(batch.device))
    return lambda: execute(batch)


def seconds_and_kernels(
    step: Callable[[], Any], steps: int, device: torch.device
) -> tuple[float, dict[str, Any]]:
    """The seconds of a step, after some that do not count, and the account of its kernels."""
    for _ in range(max(5, steps // 5)):
        step()
    wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - start) / steps, account(step) if device.type == "cuda" else {}


def wait(device: torch.device) -> None:
    """Wait for what was started on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""The losses of the steps, read from the device some steps at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scorematching.errors import DivergedError
from scorematching.training.ranks import Ranks

READ_EVERY = 50
"""Steps after which losses are read at the latest."""


class LossReader:
    """Losses that stay on the device until they are read, at most `READ_EVERY` steps later.

    Reading waits for the device, or for the other processes. On a CPU and in a single process,
    losses are read at once.

    Attributes:
        step: number of steps.
        recent: losses since the last record.
        last_finite: the last loss that was read and finite.
    """

    def __init__(self, ranks: Ranks, log_every: int) -> None:
        at_once = ranks.device.type == "cpu" and ranks.count == 1
        self.ranks, self.every = ranks, 1 if at_once else min(log_every, READ_EVERY)
        self.step = 0
        self.last_finite: float | None = None
        self.unread: list[Tensor] = []
        self.recent: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Add the loss of the next step; may `read`."""
        self.unread.append(loss)
        self.step += 1
        if len(self.unread) >= self.every:
            self.read()

    def read(self) -> None:
        """Read the losses that are still on the device.

        Raises:
            DivergedError: if one is not finite, with the number of its step.
        """
        if not self.unread:
            return
        losses = self.ranks.gather(torch.stack(self.unread)).mean(0).tolist()
        self.unread.clear()
        for step, loss in enumerate(losses, self.step - len(losses) + 1):
            if not math.isfinite(loss):
                raise DivergedError(step, self.last_finite)
            self.last_finite = loss
        self.recent += losses

    def mean(self) -> float:
        """The mean loss since the last call."""
        self.read()
        mean = sum(self.recent) / len(self.recent)
        self.recent.clear()
        return mean

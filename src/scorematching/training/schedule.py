"""Learning rates: one factor per step, which multiplies the own rate of every parameter group."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from scorematching.training.config import TrainConfig


def rate_factor(config: TrainConfig, step: int, total: int) -> float:
    """What a step, counted from zero, multiplies learning rates by in a run of ``total`` steps.

    ``min(1, (step + 1) / warmup)``, times ``0.5 (1 + cos(pi u))`` for "cosine", where u rises from
    zero at the end of the warm-up to one at the end of the run.
    """
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    u = (step - config.warmup) / max(1, total - config.warmup)
    return 0.5 * (1 + math.cos(math.pi * u))


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """The learning rate of a step, counted from zero, in a run of ``total`` steps.

    It is that of parameters in a group without a rate of its own: ``config.lr`` times the factor
    of the schedule.

    Example:
        >>> config = TrainConfig(steps=4, lr=1.0, schedule="cosine", warmup=2)
        >>> [round(learning_rate(config, step, 4), 3) for step in range(4)]
        [0.5, 1.0, 1.0, 0.5]
    """
    return config.lr * rate_factor(config, step, total)


class Schedule(LambdaLR):
    """The schedule, with the rates of step ``done`` set; ``step()`` sets those of the next.

    A rate that is a tensor is changed in place, as CUDA graphs need it.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, config: TrainConfig, total: int, done: int
    ) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = float(group["lr"])  # a number: rates are computed off the device
        super().__init__(optimizer, lambda step: rate_factor(config, step, total), done - 1)

    def step(self, epoch: int | None = None) -> None:
        """Set the rates of the next step."""
        super().step(epoch)
        self.set_rates = self._rates()

    def keep_changes(self) -> bool:
        """Let rates that a callback has set hold from now on, times the factor of the schedule.

        Returns:
            Whether there were any.
        """
        groups, rates = self.optimizer.param_groups, self._rates()
        changed = [i for i, rate in enumerate(rates) if rate != self.set_rates[i]]
        for i in changed:
            factor = self.lr_lambdas[i](self.last_epoch)
            if factor:  # zero after the last step of a cosine
                groups[i]["initial_lr"] = self.base_lrs[i] = float(groups[i]["lr"]) / factor
        self.set_rates = rates
        return bool(changed)

    def _rates(self) -> list[Any]:
        """The rates; of tensors the number of their changes, since reading waits for the device."""
        rates = (group["lr"] for group in self.optimizer.param_groups)
        return [(rate._version,) if isinstance(rate, Tensor) else rate for rate in rates]

"""Learning rates: one factor per step, which multiplies the own rate of every parameter group."""

import math

import torch
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


def make_scheduler(
    optimizer: torch.optim.Optimizer, config: TrainConfig, total: int, done: int
) -> LambdaLR:
    """The schedule, with the rates of step ``done`` set; ``step()`` sets those of the next.

    A rate that is a tensor is changed in place, as CUDA graphs need it.
    """
    for group in optimizer.param_groups:
        group["initial_lr"] = float(group["lr"])  # a number: rates are computed off the device
    return LambdaLR(optimizer, lambda step: rate_factor(config, step, total), done - 1)

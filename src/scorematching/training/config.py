"""Settings of a training run."""

from dataclasses import dataclass, fields

import numpy as np

from scorematching._checks import check_choice, check_count, check_flag, check_positive, check_share

SCHEDULES = ("constant", "cosine")
PRECISIONS = ("float32", "bf16")
PARALLEL = ("ddp", "fsdp")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; its length, in steps or in epochs, has no default.

    Args:
        steps: number of optimiser steps.
        epochs: number of passes over the data, instead of steps.
        batch_size: points per step, over all processes together.
        lr: learning rate of parameters without a rate of their own.
        schedule: "constant", or "cosine", which falls to zero over the run. It multiplies the own
            rate of every parameter group.
        warmup: steps over which learning rates rise linearly to their full value.
        max_norm: clip the norm of the gradient to this; None does not clip.
        ema_decay: decay of an exponential moving average of the weights, which is then validated
            and returned; None keeps no average.
        validate_every: steps between validations, where there is a validation.
        patience: stop after this many validations without an improvement; None never stops.
        min_improvement: what counts as an improvement, in standard errors of the difference between
            validation losses; zero counts every new least loss, 2 leaves out most that are noise.
        checkpoint_every: steps between checkpoints.
        log_every: steps between records of the mean loss.
        drop_last: leave out the points of an epoch that do not fill a batch.
        precision: "float32" computes in the dtype of the weights; "bf16" in mixed precision.
        accumulate: evaluate each batch in this many parts, one after the other, and add up their
            gradients: the same step in less memory.
        parallel: with several processes, "ddp" keeps all weights in each; "fsdp" splits weights,
            gradients and optimiser states over them.

    Example:
        >>> TrainConfig(epochs=10, lr=3e-4, schedule="cosine", max_norm=1000.0).batch_size
        128
    """

    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 128
    lr: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    max_norm: float | None = None
    ema_decay: float | None = None
    validate_every: int = 100
    patience: int | None = None
    min_improvement: float = 0.0
    checkpoint_every: int = 1000
    log_every: int = 50
    drop_last: bool = True
    precision: str = "float32"
    accumulate: int = 1
    parallel: str = "ddp"

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"one of steps and epochs must be given, got steps={self.steps!r} and "
                f"epochs={self.epochs!r}; try TrainConfig(steps=1000)"
            )
        name = "steps" if self.epochs is None else "epochs"
        check_count(getattr(self, name), name, "it is the length of the run")
        if self.warmup != 0:
            check_count(self.warmup, "warmup", "zero is for no warm-up")
        check_positive(self.lr, "lr", "1e-3 is a good start for Adam")
        if self.max_norm is not None:
            check_positive(self.max_norm, "max_norm", "None leaves the gradient alone")
        for name in ("batch_size", "validate_every", "checkpoint_every", "log_every", "accumulate"):
            check_count(getattr(self, name), name, "it counts points, steps or parts")
        if self.patience is not None:
            check_count(self.patience, "patience", "None trains to the end")
        if self.min_improvement != 0:
            check_positive(self.min_improvement, "min_improvement", "zero counts all improvements")
        check_flag(self.drop_last, "drop_last", "True leaves out batches that are not full")
        check_choice(self.schedule, "schedule", SCHEDULES, '"constant" suits most runs')
        check_choice(self.precision, "precision", PRECISIONS, '"float32" suits most runs')
        check_choice(self.parallel, "parallel", PARALLEL, '"ddp" suits models that fit in memory')
        if self.ema_decay is not None:
            advice = "0.999 averages over about a thousand steps, None keeps no average"
            check_share(self.ema_decay, "ema_decay", advice)
        for name, value in ((f.name, getattr(self, f.name)) for f in fields(self)):
            if isinstance(value, np.generic):  # checkpoints and logs have no numbers of numpy
                object.__setattr__(self, name, value.item())

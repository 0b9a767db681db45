"""Early stopping: the best validation, and whether to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from scorematching._checks import check_count, check_positive


@dataclass
class EarlyStopping:
    """The least validation loss so far, and how long there was no improvement that counts.

    Validations have the same points and the same noise, so that two of them are compared point by
    point: an improvement is the mean of the differences of their losses, and its standard error
    that of this mean, which is much smaller than that of either loss. Losses are compared with
    those of the last improvement that counted, so that many small ones count together.

    Args:
        patience: validations without an improvement that counts before the run stops; None never
            stops.
        min_improvement: an improvement counts if it exceeds this many of its standard errors. Zero
            counts every new least loss.

    Example:
        >>> stopping = EarlyStopping(patience=2)
        >>> [stopping.update(step, loss) for step, loss in enumerate([3.0, 1.0, 2.0, 1.0])]
        [True, True, False, False]
        >>> stopping.best_step, stopping.stop
        (1, True)
    """

    patience: int | None = None
    best_loss: float | None = None
    best_step: int | None = None
    waited: int = 0
    min_improvement: float = 0.0
    reference: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.patience is not None:
            check_count(self.patience, "patience", "None never stops")
        if self.min_improvement != 0:
            check_positive(self.min_improvement, "min_improvement", "zero counts all improvements")

    def update(self, step: int, losses: Tensor | float) -> bool:
        """Count a validation; returns whether it has the least mean so far. NaN never has.

        Args:
            step: its step.
            losses: of every point, ``(N,)``, or their mean.
        """
        loss = mean_and_error(losses)[0]
        # A comparison with NaN is false, and so counts as no improvement.
        best = loss < (math.inf if self.best_loss is None else self.best_loss)
        counts = best
        if self.min_improvement and isinstance(losses, Tensor) and losses.ndim > 0:
            counts = self._is_significant(losses)
            self.reference = losses.clone() if counts else self.reference
        if best:
            self.best_loss, self.best_step = loss, step
        self.waited = 0 if counts else self.waited + 1
        return best

    def _is_significant(self, losses: Tensor) -> bool:
        """Whether losses are significantly less than those of the last time they were."""
        if self.reference is None:
            return math.isfinite(float(losses.mean()))
        improvement, error = mean_and_error(self.reference - losses)
        return improvement > self.min_improvement * (error or 0.0)

    @property
    def stop(self) -> bool:
        """Whether the run should stop."""
        return self.patience is not None and self.waited >= self.patience


def mean_and_error(losses: Tensor | float) -> tuple[float, float | None]:
    """The mean of losses and its standard error; None where it is not known.

    Example:
        >>> import torch
        >>> mean_and_error(torch.tensor([1.0, 3.0]))
        (2.0, 1.0)
    """
    if not isinstance(losses, Tensor) or losses.ndim == 0:
        return float(losses), None
    error = losses.std() / len(losses) ** 0.5 if len(losses) > 1 else None
    return float(losses.mean()), None if error is None else float(error)

"""Early stopping: the best validation, and whether to stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EarlyStopping:
    """The least validation loss so far, and how long ago it was.

    Args:
        patience: validations without a new least loss before the run stops; None never stops.

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

    def update(self, step: int, loss: float) -> bool:
        """Count a validation; returns whether it is the best so far. NaN never is."""
        # A comparison with NaN is false, and so counts as no improvement.
        if loss < (float("inf") if self.best_loss is None else self.best_loss):
            self.best_loss, self.best_step, self.waited = loss, step, 0
            return True
        self.waited += 1
        return False

    @property
    def stop(self) -> bool:
        """Whether the run should stop."""
        return self.patience is not None and self.waited >= self.patience

"""Fits that end in time: a clock that estimators ask, and a callback that stops training."""

from __future__ import annotations

import time
from typing import Any

from scorematching._checks import is_number
from scorematching.training import Callback
from scorematching.training.progress import Record
from scorematching.training.state import TrainState


class Clock:
    """Whether the time of a fit is over.

    Args:
        max_seconds: from now on; None never ends.

    Example:
        >>> Clock(None).is_over, Clock(1e-9).is_over
        (False, True)
    """

    def __init__(self, max_seconds: float | None = None) -> None:
        self.start, self.max_seconds = time.monotonic(), max_seconds

    @property
    def is_over(self) -> bool:
        """Whether the seconds have passed."""
        return self.max_seconds is not None and time.monotonic() - self.start >= self.max_seconds


class StopInTime(Callback):
    """Ends a training run when a clock says so; the best weights so far are kept.

    The clock is asked after every validation, so that there are weights to keep.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_record(self, state: TrainState, record: Record) -> None:
        """Stop the run if time is over."""
        if record.validation is not None and self.clock.is_over:
            state.stop()


def check_max_seconds(value: Any) -> None:
    """Require None or a positive number of seconds."""
    if value is not None and (not is_number(value) or not value > 0):
        raise ValueError(
            f"max_seconds must be a positive number or None, got {value!r}; None has no limit"
        )

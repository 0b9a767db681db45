"""Fits that end in time: a clock that estimators ask, and a callback that stops training."""

from __future__ import annotations

import time
import warnings
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

    def cuts(self, what: str) -> bool:
        """Whether the time is over; a warning then says what part of the fit that ended."""
        if self.is_over:
            limit = f"the time limit of {self.max_seconds:.3g} s was over"
            warnings.warn(f"{what}, because {limit}", stacklevel=2)
        return self.is_over


class StopInTime(Callback):
    """Ends a training run when a clock says so; the best weights so far are kept.

    The clock is asked after every validation, so that there are weights to keep.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_record(self, state: TrainState, record: Record) -> None:
        """Stop the run if time is over."""
        if record.validation is None or state.step >= state.total:
            return
        if self.clock.cuts(f"training ended at step {state.step} of at most {state.total}"):
            state.stop()


def check_max_seconds(value: Any) -> None:
    """Require None or a positive number of seconds."""
    if value is not None and (not is_number(value) or not value > 0):
        raise ValueError(
            f"max_seconds must be a positive number or None, got {value!r}; None has no limit"
        )

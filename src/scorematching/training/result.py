"""The course of a run that has ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scorematching._tables import html_table
from scorematching.training.progress import Record


@dataclass(frozen=True)
class TrainResult:
    """The course of a run; the weights are in the module.

    Attributes:
        history: records every ``log_every`` steps and at every validation.
        steps: steps taken.
        best_step: step of the least validation loss; None without validation.
        best_loss: that loss.
        stopped_early: whether patience or a callback ended the run.
        seconds: time taken, without interruptions.
        points: points seen, over all processes and all epochs.
        executor: name of the executor of the last step.

    Example:
        >>> result = TrainResult([], steps=10, seconds=2.0, points=1280)
        >>> result.points_per_second
        640.0
        >>> result
        TrainResult(steps: 10, seconds: 2, 640 points per second, records: 0, executor: eager)
    """

    history: list[Record]
    steps: int
    best_step: int | None = None
    best_loss: float | None = None
    stopped_early: bool = False
    seconds: float = 0.0
    points: int = 0
    executor: str = "eager"

    @property
    def points_per_second(self) -> float:
        """Throughput, validation and checkpoints included."""
        return self.points / self.seconds if self.seconds > 0 else math.nan

    def __repr__(self) -> str:
        return f"TrainResult({', '.join(f'{name}: {value}' for name, value in self._facts())})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html_table(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        """What there is to say, by name."""
        facts = [("steps", f"{self.steps:,}" + (", stopped early" if self.stopped_early else ""))]
        if self.best_step is not None:
            facts.append(("best validation", f"{self.best_loss:.6g} at step {self.best_step:,}"))
        elif self.history:
            facts.append(("last training loss", f"{self.history[-1].loss:.6g}"))
        seconds = f"{self.seconds:.3g}, {self.points_per_second:,.0f} points per second"
        facts.append(("seconds", seconds if self.seconds > 0 else f"{self.seconds:.3g}"))
        return [*facts, ("records", str(len(self.history))), ("executor", self.executor)]

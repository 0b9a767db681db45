"""Progress of a fit: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scorematching.estimators.density.bases.candidates import families

_INTERVAL = 10.0
_TRIED = ("held-out log-likelihood", "gain of the first fold")


class FitProgress:
    """Shows how many candidates of a base were tried, and how much time is left at most.

    Args:
        total: candidates, at most.
        console: to print to; None is standard error.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.total, self.done = max(1, total), 0
        self.console = console or Console(stderr=True)
        self.start, self.said = time.monotonic(), time.monotonic()
        self.lines: list[tuple[float, str]] = []
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.bar: Any = Progress(*columns, TimeRemainingColumn(), console=self.console)
        self.task = self.bar.add_task("fitting", total=self.total)

    def __enter__(self) -> FitProgress:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def __call__(self, line: str) -> None:
        """Receive a line about a candidate."""
        now = time.monotonic()
        self.lines.append((now - self.start, line))
        self.done += any(word in line for word in _TRIED) and not line.startswith("base:")
        left = (now - self.start) / max(1, self.done) * max(0, self.total - self.done)
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self.done, description=line.split(":")[0][:30])
        elif now - self.said >= _INTERVAL:
            self.said = now
            text = f"{self.done} of at most {self.total} candidates, at most {left:.0f} s left"
            self.console.print(text, soft_wrap=True, highlight=False)


def candidates(model: str, rows: int) -> int:
    """How many candidates a fit tries at most."""
    if model not in ("auto", "mlp", "dkef"):
        return 1
    base = "auto" if model == "auto" else "gaussian"
    return sum(len(family.candidates) for family in families(base, rows))

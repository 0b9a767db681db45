"""Progress of a run: a bar or lines for people, and a log file of JSON lines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scorematching._files import write_atomically, writing


@dataclass(frozen=True)
class Record:
    """Numbers of a run at one step.

    Attributes:
        step: steps taken.
        loss: mean loss of the batches since the record before.
        lr: learning rate of the last of them, in the first parameter group.
        seconds: time since the run began, without interruptions.
        validation: validation loss; None without a validation at this step.
        validation_error: its standard error, where the losses of points are known.

    Example:
        >>> Record(step=50, loss=-1.25, lr=1e-3, seconds=0.5).validation is None
        True
    """

    step: int
    loss: float
    lr: float
    seconds: float
    validation: float | None = None
    validation_error: float | None = None


class Log:
    """A file with one JSON object per line.

    Args:
        path: the file; None writes no log.
        step: the first step of a resumed run. Events of later steps are removed, since they will
            be written again, and so is an incomplete last line.
    """

    def __init__(self, path: Path | None, step: int = 0) -> None:
        self.path = path
        if path is None:
            return
        kept = [event for event in read_log(path) if event["step"] <= step] if step else []
        lines = [json.dumps(event) + "\n" for event in kept]
        write_atomically(path, "".join(lines).encode())

    def write(self, event: str, step: int, values: Mapping[str, Any] | None = None) -> None:
        """Append one event."""
        if self.path is None:
            return
        line = {"event": event, "step": step, **(values or {})}
        strict = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in line.items()
        }
        text = json.dumps(strict, allow_nan=False) + "\n"
        with writing(self.path, "free space and resume"), self.path.open("a") as file:
            file.write(text)


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The events in a log, without an incomplete last line.

    Example:
        >>> [event["loss"] for event in read_log("runs/wine/log.jsonl")  # doctest: +SKIP
        ...     if event["event"] == "record"]
        [-1.25, -1.5]

    Raises:
        ValueError: names the file and the line, if one is no event.
    """
    file = Path(path)
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    return [_event(file, number, line) for number, line in enumerate(whole, 1)]


def _event(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("step"), int):
        raise ValueError(
            f"{path} must hold one event per line, got something else in line {number}; remove "
            "that line: a run resumes from its checkpoint, not from this file"
        )
    return event


class Display:
    """Shows nothing; the base of what shows progress."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        """Stop."""

    def advance(self, step: int) -> None:
        """Show that a step was taken."""

    def show(self, record: Record, rate: float) -> None:
        """Show a record, at ``rate`` points per second."""


class Bar(Display):
    """A bar with loss, throughput and time left, on a terminal."""

    def __init__(self, total: int, done: int, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        words = TextColumn("{task.description}")
        columns = (BarColumn(), MofNCompleteColumn(), words, TimeRemainingColumn())
        self.bar = RichProgress(*columns, console=console)
        self.task = self.bar.add_task("", total=total, completed=done)
        self.drawn = 0.0

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def advance(self, step: int) -> None:
        """Move the bar, at most ten times a second, since that can take longer than a step."""
        now = time.perf_counter()
        if now - self.drawn > 0.1:
            self.bar.update(self.task, completed=step)
            self.drawn = now

    def show(self, record: Record, rate: float) -> None:
        """Show numbers beside the bar."""
        self.bar.update(self.task, completed=record.step, description=describe(record, rate))


class Lines(Display):
    """Plain lines, where there is no terminal.

    Lines are at least ``interval`` seconds apart; the first and the last are always written.
    """

    def __init__(self, total: int, done: int, console: Any, interval: float = 10.0) -> None:
        self.total, self.done, self.console, self.interval = total, done, console, interval
        self.start, self.written = time.perf_counter(), -math.inf

    def show(self, record: Record, rate: float) -> None:
        """Write a line, if the interval has passed."""
        now = time.perf_counter()
        if now - self.written < self.interval and record.step < self.total:
            return
        self.written = now
        left = (now - self.start) / max(1, record.step - self.done) * (self.total - record.step)
        line = f"step {record.step}/{self.total}  {describe(record, rate)}  {left:.0f} s left"
        self.console.print(line, soft_wrap=True, highlight=False)


def display(enabled: bool, total: int, done: int = 0, console: Any = None) -> Display:
    """A bar on a terminal, lines elsewhere (both on stderr), or nothing, after ``done`` steps."""
    if not enabled:
        return Display()
    from rich.console import Console

    console = Console(stderr=True) if console is None else console
    return Bar(total, done, console) if console.is_terminal else Lines(total, done, console)


def describe(record: Record, rate: float) -> str:
    """A record as text.

    Example:
        >>> describe(Record(step=50, loss=-1.25, lr=1e-3, seconds=0.5), rate=12800.0)
        'loss -1.25  12,800 points/s'
    """
    validation = "" if record.validation is None else f"  validation {record.validation:.6g}"
    error = "" if record.validation_error is None else f" +- {record.validation_error:.2g}"
    return f"loss {record.loss:.6g}{validation}{error}  {rate:,.0f} points/s"

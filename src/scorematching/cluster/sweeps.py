"""Sweeps: one function, many settings, each result in a file of its own."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scorematching._checks import check_choice
from scorematching._files import write_atomically
from scorematching.cluster.tasks import Resources, run_tasks

RUN = "run.json"
EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        settings: what the function was called with.
        metrics: what it returned; empty after an error.
        seconds: time that it took.
        error: text of the error that it raised; None without.

    Example:
        >>> SweepRun({"lr": 1e-3}, {"loss": -1.5}, seconds=2.0).error is None
        True
    """

    settings: dict[str, Any]
    metrics: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None


def grid(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of settings; the last name varies fastest.

    Example:
        >>> grid({"lr": [1e-3, 1e-4], "hidden": [64]})
        [{'lr': 0.001, 'hidden': 64}, {'lr': 0.0001, 'hidden': 64}]
    """
    return [dict(zip(choices, values)) for values in itertools.product(*choices.values())]


def sweep(
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    settings: Sequence[Mapping[str, Any]],
    folder: str | Path,
    executor: str = "local",
    resources: Resources | None = None,
) -> list[SweepRun]:
    """Call a function with many settings; each result is written to ``folder/NUMBER/run.json``.

    Runs that have a file are not repeated: give an interrupted sweep again, and it continues. Runs
    with an error have none.

    Args:
        function: from settings to metrics, numbers and strings that JSON can hold. Ray sends it to
            other processes, so it must not depend on what this one has changed.
        settings: for each run, numbers and strings.
        folder: for results; on a cluster of several machines, one that all of them see.
        executor: "local" calls the function in this process, one run after the other; "ray" on a
            cluster, by Ray Tune (see `connect`).
        resources: of each run on a cluster; None is one CPU.

    Returns:
        The runs, in the order of the settings.

    Raises:
        ValueError: if the executor is unknown, or the folder holds runs with other settings.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = sweep(lambda s: {"loss": s["lr"] ** 2}, grid({"lr": [1.0, 2.0]}), folder)
        >>> min(runs, key=lambda run: run.metrics["loss"]).settings
        {'lr': 1.0}
    """
    check_choice(executor, "executor", EXECUTORS, '"local" needs no cluster')
    runs = [_read(Path(folder) / f"{i:04d}" / RUN, dict(s)) for i, s in enumerate(settings)]
    missing = [(i, dict(settings[i])) for i, run in enumerate(runs) if run is None]

    def call(task: tuple[int, dict[str, Any]]) -> SweepRun:
        began = time.perf_counter()
        metrics = dict(function(dict(task[1])))
        return SweepRun(task[1], metrics, round(time.perf_counter() - began, 3))

    def done(task: tuple[int, dict[str, Any]], outcome: Any) -> None:
        number, given = task
        if isinstance(outcome, Exception):
            runs[number] = SweepRun(given, error=f"{type(outcome).__name__}: {outcome}")
            return
        path = Path(folder) / f"{number:04d}" / RUN
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(outcome), indent=1).encode())
        runs[number] = outcome

    if executor == "ray":
        run_tasks(call, missing, done, Path(folder) / "ray", resources)
    else:
        for task in missing:
            done(task, _attempt(call, task))
    return [run for run in runs if run is not None]


def _read(path: Path, settings: dict[str, Any]) -> SweepRun | None:
    """A run from its file, if there is one."""
    if not path.exists():
        return None
    try:
        run = SweepRun(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} must hold a run of a sweep, got something that cannot be read ({error}); "
            "remove it, and the run is done again"
        ) from error
    if run.settings != json.loads(json.dumps(settings)):
        raise ValueError(
            f"{path} must hold a run with the settings {settings}, got {run.settings}; choose "
            "another folder"
        )
    return run


def _attempt(function: Callable[[Any], Any], task: Any) -> Any:
    """The result of a function, or the `Exception` that it raises."""
    try:
        return function(task)
    except Exception as error:
        return error

"""Tasks on a Ray cluster, scheduled and repeated by Ray Tune."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scorematching.cluster.connection import connect, import_ray

Done = Callable[[Any, Any], None]
"""Called with a task and its result, or the `Exception` that it raised."""


class Resources(NamedTuple):
    """What one call of a function needs of a cluster.

    Attributes:
        cpus: number of CPUs.
        gpus: number of GPUs; a fraction lets several calls share one.
        retries: how often a call is repeated whose process died. Errors of the function itself are
            not repeated.

    Example:
        >>> Resources(gpus=0.25).cpus
        1.0
    """

    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3


def run_tasks(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    done: Done,
    folder: Path,
    resources: Resources | None = None,
) -> None:
    """Call a function for every task on a cluster.

    A task whose process died is repeated; if it dies more often than that is repeated, its
    outcome is a `RuntimeError`.

    Args:
        function: what to call; Ray sends it to other processes, with the tasks.
        tasks: its arguments.
        done: called in this process whenever a task ends, with its outcome.
        folder: for Ray Tune's own files, removed at the end; on a cluster of several machines, one
            that all of them see.
        resources: of each task; None is one CPU.

    Raises:
        ImportError: if Ray is not installed.

    Example:
        >>> run_tasks(abs, [-1, 2], print, Path("ray-files"))  # doctest: +SKIP
        -1 1
        2 2
    """
    needs = Resources() if resources is None else resources
    if not tasks:
        return
    with connect(), _own_directory():
        tune = import_ray("ray.tune")

        def trainable(config: dict[str, Any]) -> None:
            try:
                outcome = function(tasks[config["number"]])
            except Exception as error:
                outcome = error
            tune.report({"outcome": outcome})

        tune.Tuner(
            tune.with_resources(trainable, {"cpu": needs.cpus, "gpu": needs.gpus}),
            param_space={"number": tune.grid_search([*range(len(tasks))])},
            run_config=tune.RunConfig(
                name="tasks",
                storage_path=str(folder.resolve()),
                failure_config=tune.FailureConfig(max_failures=needs.retries),
                callbacks=[_make_watch(tasks, done, needs.retries)],
                verbose=0,
            ),
        ).fit()
    shutil.rmtree(folder, ignore_errors=True)


def _make_watch(tasks: Sequence[Any], done: Done, retries: int) -> Any:
    """A callback of Ray Tune that passes outcomes on."""
    tune = import_ray("ray.tune")

    class Watch(tune.Callback):  # type: ignore[name-defined]
        """Passes outcomes on as soon as they are known."""

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any) -> None:
            """A task has ended."""
            done(tasks[trial.config["number"]], trial.last_result["outcome"])

        def on_trial_error(self, iteration: int, trials: Any, trial: Any) -> None:
            """A task's process has died too often."""
            text = f"its process died {retries + 1} times; see {trial.path}"
            done(tasks[trial.config["number"]], RuntimeError(text))

    return Watch()


@contextmanager
def _own_directory() -> Iterator[None]:
    """Workers stay in the directory of this process, as its relative paths need."""
    name = "RAY_CHDIR_TO_TRIAL_DIR"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

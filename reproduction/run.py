"""Runs of an experiment: plan them, read the finished ones, do the others.

Each variant and seed is one run with its own folder. ``run.json`` is written there last, so an
interrupted command can be given again: finished runs are kept, and an unfinished run continues
from its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.harness.outputs import check_writable
from benchmarks.harness.provenance import commit, device_name, now, versions
from reproduction.experiment import Experiment, Job, Run, as_numbers
from reproduction.seeds import check_seeds
from reproduction.workers import Outcome, attempt, in_processes, prepare
from scorematching._checks import check_choice
from scorematching._files import write_atomically
from scorematching.cluster import Resources, run_tasks
from scorematching.training.lock import locked

RUN, BEGUN, LOCK = "run.json", "begun.json", "run.lock"
EXECUTORS = ("local", "ray")

T = TypeVar("T")

Say = Callable[[str], None]
"""Takes a line about a run, such as ``print``."""


@dataclass(frozen=True)
class Request:
    """Which runs of an experiment to do, and how.

    Args:
        seeds: one run of every variant for each.
        only: patterns of variants, such as ``redwine/*``; empty means all.
        overrides: settings that differ from the variants' own.
        smoke: use the settings of a smoke test: seconds, and no data files.
        out: folder of all runs.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.
        data_dir: folder with data files.
        workers: number of processes that do runs at the same time.
        progress: show progress bars.
        executor: "local" for processes of this machine, or "ray" for a Ray cluster, which does as
            many runs at the same time as it has room for. All its machines must see ``out``.
        resources: of each run on a cluster.

    Raises:
        ValueError: if there are no seeds, a seed is given twice, or one is too large; or if the
            executor is unknown.

    Example:
        >>> Request(seeds=(0, 1), only=("redwine/*",)).workers
        1
    """

    seeds: Sequence[int] = (0,)
    only: Sequence[str] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    smoke: bool = False
    out: Path = Path("runs")
    device: str = "auto"
    data_dir: str | None = None
    workers: int = 1
    progress: bool = False
    executor: str = "local"
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        """Check the seeds and the executor."""
        check_seeds(self.seeds)
        check_choice(self.executor, "executor", EXECUTORS, '"local" needs no cluster')

    def folder(self, experiment: Experiment) -> Path:
        """Folder of an experiment's runs; smoke tests have one of their own."""
        return self.out / (f"{experiment.name}-smoke" if self.smoke else experiment.name)


@dataclass(frozen=True)
class Task:
    """One run to do: its experiment, settings and job."""

    experiment: Experiment
    config: Any
    job: Job
    smoke: bool

    @property
    def name(self) -> str:
        """Variant and seed, for messages."""
        return f"{self.job.variant} seed {self.job.seed}"


def reproduce(experiment: Experiment, request: Request, say: Say = lambda line: None) -> list[Run]:
    """Read the requested runs that are finished, and do the others.

    Args:
        experiment: what to reproduce.
        request: which of its runs, and how.
        say: takes a line about every run.

    Returns:
        The runs, in the order of variants and seeds.

    Raises:
        ValueError: if no variant matches, or a folder holds a run with other settings.
        RuntimeError: if runs failed; the other runs are done all the same.
    """
    tasks = plan(experiment, request)
    if not request.only and not torch.cuda.is_available():
        tasks = _without_gpu(tasks, say)
    waiting = [task for task in tasks if finished(task) is None]
    if len(waiting) < len(tasks):
        say(f"{len(tasks) - len(waiting)} of {len(tasks)} runs are there already")
    check_writable(request.folder(experiment), "--out", folder=True)
    try:
        failures = _do_all(waiting, request, say)
    except KeyboardInterrupt:
        done = sum(finished(task) is not None for task in tasks)
        say(f"interrupted: {done} of {len(tasks)} runs are finished; the same command goes on")
        raise
    if failures:
        raise RuntimeError(
            f"{len(failures)} of {len(tasks)} runs failed; give the command again to go on: "
            + "; ".join(failures)
        ) from next(iter(failures.values()))
    return [run for run in map(finished, tasks) if run is not None]


def _without_gpu(tasks: list[Task], say: Say) -> list[Task]:
    """Tasks less those of variants that need a GPU, where there is none and none was asked for."""
    needing = [task for task in tasks if getattr(task.config, "device", None) == "cuda"]
    for variant in dict.fromkeys(task.job.variant for task in needing):
        say(f"{variant} is left out: it needs a GPU")
    return [task for task in tasks if task not in needing]


def plan(experiment: Experiment, request: Request) -> list[Task]:
    """The requested runs, finished or not."""
    device, folder = _device(request.device), request.folder(experiment)
    if request.executor == "ray":
        folder = folder.resolve()  # workers may have another directory
    bars = request.progress and request.workers == 1 and request.executor == "local"

    def task(variant: str, seed: int) -> Task:
        config = experiment.settings(variant, request.overrides, request.smoke)
        place = folder / variant.replace(" ", "-") / f"seed-{seed}"
        job = Job(variant, seed, device, place, request.data_dir, bars)
        return Task(experiment, config, job, request.smoke)

    variants = _variants(experiment, request.only)
    return [task(variant, seed) for variant in variants for seed in request.seeds]


def finished(task: Task) -> Run | None:
    """The run of a task, if it is finished.

    Raises:
        ValueError: if the folder holds a run with other settings.
    """
    path = task.job.folder / RUN
    if not path.exists():
        return None
    run = read(path)
    given = json.loads(json.dumps(as_numbers(task.config)))
    either = task.experiment.interchangeable
    had, asked = ({k: v for k, v in c.items() if k not in either} for c in (run.config, given))
    if had != asked:
        names = [name for name in asked if had.get(name) != asked[name]]
        raise ValueError(
            f"{path} holds a run with other settings ({', '.join(names) or 'fewer of them'}); "
            "choose another --out, or remove that folder"
        )
    return run


def read(path: Path) -> Run:
    """A run from its file."""
    return _read(path, lambda document: Run(**document))


def read_all(folder: Path) -> list[Run]:
    """All finished runs below a folder, or those of a file with several."""
    if folder.is_file():
        return _read(folder, lambda document: [Run(**run) for run in document["runs"]])
    return [read(path) for path in sorted(folder.rglob(RUN))]


def _read(path: Path, convert: Callable[[Any], T]) -> T:
    """What a JSON file describes.

    Raises:
        ValueError: names the file, if it holds something else.
    """
    try:
        return convert(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} must hold a finished run, got something that cannot be read ({error}); "
            "remove it, and the run is done again"
        ) from error


def do(task: Task) -> Run:
    """Do one run, and write its ``run.json`` at the end.

    Raises:
        FolderInUseError: if another process does it.
    """
    task.job.folder.mkdir(parents=True, exist_ok=True)
    with locked(task.job.folder, LOCK):
        return finished(task) or _do(task)  # another process may have done it meanwhile


def _do(task: Task) -> Run:
    began = time.perf_counter()
    run = Run(
        experiment=task.experiment.name,
        variant=task.job.variant,
        seed=task.job.seed,
        config=as_numbers(task.config),
        metrics={},
        seconds=0.0,
        device=device_name(task.job.device.type),
        versions=versions(),
        commit=commit(),
        command=command(task),
        date=now(),
        smoke=task.smoke,
    )
    _write(task.job.folder / BEGUN, run)
    metrics = task.experiment.run(task.config, task.job)
    seconds = round(time.perf_counter() - began, 2)
    run = replace(run, metrics=metrics, seconds=seconds, date=now())
    _write(task.job.folder / RUN, run)
    (task.job.folder / BEGUN).unlink()
    return run


def _write(path: Path, run: Run) -> None:
    write_atomically(path, json.dumps(asdict(run), indent=1).encode())


def read_unfinished(experiments: Mapping[str, Experiment], folder: Path) -> list[Run]:
    """Runs below a folder that were cut, with what they have measured so far.

    Args:
        experiments: by name; runs of those that measure nothing on the way are left out.
        folder: of runs; a file has none.
    """
    found = []
    for path in sorted(folder.rglob(BEGUN)):
        run = read(path)
        experiment = experiments.get(run.experiment)
        if (path.parent / RUN).exists() or experiment is None or experiment.unfinished is None:
            continue
        metrics = experiment.unfinished(path.parent)
        if metrics is not None:
            found.append(replace(run, metrics=metrics))
    return found


def command(task: Task) -> str:
    """The command that does the same run."""
    usual = as_numbers(task.experiment.settings(task.job.variant, {}, task.smoke))
    given = as_numbers(task.config)
    changed = [f" --set {name}={given[name]}" for name in given if given[name] != usual[name]]
    return (
        f"python -m reproduction {task.experiment.name} --only '{task.job.variant}' "
        f"--seeds {task.job.seed} --device {task.job.device.type}"
        f"{' --smoke' if task.smoke else ''}{''.join(changed)}"
    )


def _do_all(tasks: Sequence[Task], request: Request, say: Say) -> dict[str, Exception]:
    """Do runs one after the other, in several processes, or on a cluster; returns errors."""
    began, failures, numbers = time.perf_counter(), dict[str, Exception](), count(1)

    def done(task: Task, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            message = f"{task.name}: {type(outcome).__name__}: {outcome}"
            failures[message] = outcome
        else:
            message = f"{task.name}: {outcome.seconds:.0f} s"
        number = next(numbers)
        left = (time.perf_counter() - began) / number * (len(tasks) - number)
        say(f"[{number}/{len(tasks)}] {message}; {_duration(left)} left")

    if request.executor == "ray":
        run_tasks(_do_on_worker, tasks, done, request.out / "ray", request.resources)
        return failures
    parallel = request.workers > 1
    outcomes = in_processes(do, tasks, request.workers) if parallel else _one_by_one(tasks, say)
    for task, outcome in outcomes:
        done(task, outcome)
    return failures


def _do_on_worker(task: Task) -> Run:
    """Do one run in a process of a cluster, with the settings of local workers."""
    prepare(1)
    return do(task)


def _one_by_one(tasks: Sequence[Task], say: Say) -> Iterator[tuple[Task, Outcome]]:
    for task in tasks:
        say(f"{task.name} ...")
        yield task, attempt(do, task)


def _variants(experiment: Experiment, only: Sequence[str]) -> list[str]:
    found = [
        name
        for name in experiment.variants
        if not only or any(fnmatch(name, pattern) for pattern in only)
    ]
    if not found:
        raise ValueError(
            f"--only must match a variant of {experiment.name}, got {', '.join(only)}; "
            f"they are {', '.join(experiment.variants)}"
        )
    return found


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f'device must be "auto", "cpu" or "cuda", got {name!r}; try "auto"')
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError('device must be "cpu" where there is no GPU, got "cuda"; try "auto"')
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min"

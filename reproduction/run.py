"""Runs of experiments: which are asked for, which are there already, and the rest.

Every variant and seed is a run with a folder of its own, in which ``run.json`` is written last.
So a command that was interrupted is simply given again: finished runs are kept, and the one that
was under way goes on from its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.provenance import commit, device_name, now, versions
from reproduction.experiment import Experiment, Job, Run, as_numbers
from reproduction.workers import in_processes
from scorematching.training.checkpoint import write_atomically

RUN = "run.json"


@dataclass(frozen=True)
class Request:
    """What a user asks of an experiment.

    Args:
        seeds: one run of every variant for each.
        only: patterns of variants, such as ``redwine/*``; empty means all.
        overrides: settings that differ from the variants' own.
        smoke: rehearse in seconds, without data.
        out: folder of all runs.
        device: "cpu", "cuda", or "auto" for the GPU where there is one.
        data_dir: folder with data files.
        workers: how many runs go on side by side.
        progress: whether to show bars.

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


@dataclass(frozen=True)
class Task:
    """One run to be done, in this process or in another."""

    experiment: Experiment
    config: Any
    job: Job
    smoke: bool


def reproduce(
    experiment: Experiment, request: Request, say: Callable[[str], None] = lambda line: None
) -> list[Run]:
    """All runs that are asked for, the finished ones read and the others done.

    Args:
        experiment: what to reproduce.
        request: which of its runs, and how.
        say: takes a line about every run.

    Returns:
        The runs, in the order of variants and seeds.

    Raises:
        ValueError: if no variant matches, or a folder holds a run with other settings.
        RuntimeError: if runs failed; the others are done all the same.
    """
    tasks = plan(experiment, request)
    waiting = [task for task in tasks if finished(task) is None]
    if len(waiting) < len(tasks):
        say(f"{len(tasks) - len(waiting)} of {len(tasks)} runs are there already")
    failures = _do_all(waiting, request.workers, say)
    if failures:
        raise RuntimeError(
            f"{len(failures)} of {len(tasks)} runs failed; give the command again to go on: "
            + "; ".join(failures)
        )
    return [run for run in map(finished, tasks) if run is not None]


def plan(experiment: Experiment, request: Request) -> list[Task]:
    """The runs that are asked for."""
    device = _device(request.device)
    return [
        Task(
            experiment,
            experiment.settings(variant, request.overrides, request.smoke),
            Job(
                variant,
                seed,
                device,
                _folder(request, experiment) / variant.replace(" ", "-") / f"seed-{seed}",
                request.data_dir,
                request.progress and request.workers == 1,
            ),
            request.smoke,
        )
        for variant in _variants(experiment, request.only)
        for seed in request.seeds
    ]


def finished(task: Task) -> Run | None:
    """The run of a task, if it has been done.

    Raises:
        ValueError: if the folder holds a run with other settings.
    """
    path = task.job.folder / RUN
    if not path.exists():
        return None
    run = read(path)
    asked = json.loads(json.dumps(as_numbers(task.config)))
    if run.config != asked:
        names = [name for name in asked if run.config.get(name) != asked[name]]
        raise ValueError(
            f"{path} holds a run with other settings ({', '.join(names) or 'fewer of them'}); "
            "choose another --out, or remove that folder"
        )
    return run


def read(path: Path) -> Run:
    """A run from its file."""
    return Run(**json.loads(path.read_text(encoding="utf-8")))


def read_all(folder: Path) -> list[Run]:
    """All finished runs below a folder, or those of a file with several."""
    if folder.is_file():
        return [Run(**run) for run in json.loads(folder.read_text(encoding="utf-8"))["runs"]]
    return [read(path) for path in sorted(folder.rglob(RUN))]


def do(task: Task) -> Run:
    """Do one run, and write it down once it is whole."""
    began = time.perf_counter()
    task.job.folder.mkdir(parents=True, exist_ok=True)
    metrics = task.experiment.run(task.config, task.job)
    run = Run(
        experiment=task.experiment.name,
        variant=task.job.variant,
        seed=task.job.seed,
        config=as_numbers(task.config),
        metrics=metrics,
        seconds=round(time.perf_counter() - began, 2),
        device=device_name(task.job.device.type),
        versions=versions(),
        commit=commit(),
        command=command(task),
        date=now(),
        smoke=task.smoke,
    )
    write_atomically(task.job.folder / RUN, json.dumps(asdict(run), indent=1).encode())
    return run


def command(task: Task) -> str:
    """What to type for the same run."""
    usual = as_numbers(task.experiment.settings(task.job.variant, {}, task.smoke))
    given = as_numbers(task.config)
    changed = [f" --set {name}={given[name]}" for name in given if given[name] != usual[name]]
    return (
        f"python -m reproduction {task.experiment.name} --only '{task.job.variant}' "
        f"--seeds {task.job.seed} --device {task.job.device.type}"
        f"{' --smoke' if task.smoke else ''}{''.join(changed)}"
    )


def _do_all(tasks: Sequence[Task], workers: int, say: Callable[[str], None]) -> list[str]:
    """Do runs one after the other, or side by side; returns what went wrong."""
    began, failures = time.perf_counter(), []
    results = in_processes(do, tasks, workers) if workers > 1 else _one_by_one(tasks, say)
    for count, (task, run, error) in enumerate(results, 1):
        name = f"{task.job.variant} seed {task.job.seed}"
        if error is not None:
            failures.append(f"{name}: {type(error).__name__}: {error}")
        elapsed = time.perf_counter() - began
        left = elapsed / count * (len(tasks) - count)
        outcome = failures[-1] if error is not None else f"{name}: {run.seconds:.0f} s"
        say(f"[{count}/{len(tasks)}] {outcome}; {_duration(left)} left")
    return failures


def _one_by_one(tasks: Sequence[Task], say: Callable[[str], None]) -> Iterable[Any]:
    for task in tasks:
        say(f"{task.job.variant} seed {task.job.seed} ...")
        try:
            yield task, do(task), None
        except (ArithmeticError, RuntimeError, ValueError) as error:
            yield task, None, error


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


def _folder(request: Request, experiment: Experiment) -> Path:
    """Rehearsals are kept apart: their numbers mean nothing."""
    return request.out / (f"{experiment.name}-smoke" if request.smoke else experiment.name)


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

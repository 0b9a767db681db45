"""Runs of several experiments in the order of a list, until the time is up.

A list is a TOML file. Each of its entries names runs of one experiment:

    [[runs]]
    experiment = "table-nice"
    only = ["stable/*"]         # patterns of variants; default: all
    seeds = "1-2"               # default: "0"
    seconds = 120               # begin none when fewer seconds are left; default: 0
    set = {epochs = 20}         # settings that differ; default: none

The entries come in order of value, and within an entry all variants of one seed before the next
seed. At the end of the time the runs in progress are interrupted, write their checkpoints, and go
on when the same list is given again.
"""

from __future__ import annotations

import math
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from reproduction.experiment import Experiment, Run, as_numbers
from reproduction.run import RUN, Request, Task, do, finished, plan, read_all
from reproduction.seeds import read_seeds
from reproduction.workers import in_processes

ALL = Path(__file__).with_name("all.toml")
"""The runs of all reports, with their seeds."""

LENGTHS = ("epochs", "iterations")
"""Settings that say how long a run is; measurements of these names say how far it came."""

DIVERGED = ("diverged_at_step", "diverged_at")
"""Measurements that are the step at which a run diverged, of flows and of autoencoders."""

KEYS = ("experiment", "only", "seeds", "seconds", "set")


@dataclass(frozen=True)
class Entry:
    """Runs of one experiment.

    Attributes:
        experiment: its name.
        only: patterns of variants; empty means all.
        seeds: as on the command line.
        seconds: begin none of these runs when fewer seconds are left.
        settings: that differ from the variants' own.
    """

    experiment: str
    only: Sequence[str] = ()
    seeds: str = "0"
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """A run of the list, and the time (of `time.time`) after which it is not begun."""

    task: Task
    latest: float


def read_queue(path: Path) -> list[Entry]:
    """The entries of a file.

    Raises:
        ValueError: names the file, if it holds something else.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["runs"]
        return [_read_entry(entry) for entry in found]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must hold entries [[runs]] with {', '.join(KEYS)}, got something else "
            f'({error}); an entry needs at least experiment = "table-nice"'
        ) from error


def _read_entry(entry: dict[str, Any]) -> Entry:
    unknown = [name for name in entry if name not in KEYS]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
    return Entry(
        experiment=entry["experiment"],
        only=tuple(entry.get("only", ())),
        seeds=entry.get("seeds", "0"),
        seconds=float(entry.get("seconds", 0.0)),
        settings={name: _as_setting(value) for name, value in entry.get("set", {}).items()},
    )


def _as_setting(value: Any) -> Any:
    """TOML has no None; "none" is read as on the command line."""
    return None if value == "none" else value


def plan_queue(
    entries: Sequence[Entry],
    experiments: dict[str, Experiment],
    request: Request,
    end: float,
) -> list[Item]:
    """All runs of the list that are not finished, in order.

    Args:
        entries: the list.
        experiments: by name.
        request: folder, device and data; its seeds, patterns and settings are not used.
        end: when the time is up, by `time.time`; infinite for no limit.

    Raises:
        ValueError: if an entry names an unknown experiment, variant or setting.
    """
    items: dict[Path, Item] = {}
    for entry in entries:
        if entry.experiment not in experiments:
            raise ValueError(
                f"experiment must be one of {', '.join(experiments)}, got {entry.experiment!r}; "
                "change that entry of the list"
            )
        for seed in read_seeds(entry.seeds):
            asked = Request(
                seeds=(seed,),
                only=entry.only,
                overrides=entry.settings,
                smoke=request.smoke,
                out=request.out,
                device=request.device,
                data_dir=request.data_dir,
            )
            for task in plan(experiments[entry.experiment], asked):
                items.setdefault(task.job.folder, Item(task, end - entry.seconds))
    return [item for item in items.values() if finished(item.task) is None]


def without_known(items: Sequence[Item], reports: Path) -> list[Item]:
    """The runs of a list that no report has to their end.

    Args:
        items: the list.
        reports: folder with a folder for each report, such as docs/reproduction.

    Raises:
        ValueError: if no report is there.
    """
    files = sorted(reports.glob("*/results.json"))
    if not files:
        raise ValueError(
            f"--known must be a folder of reports (*/results.json), got {reports} with none; those "
            "of this repository are in docs/reproduction"
        )
    known = {(run.experiment, run.variant, run.seed): run for f in files for run in read_all(f)}
    return [item for item in items if not _is_known(item.task, known)]


def _is_known(task: Task, known: Mapping[tuple[str, str, int], Run]) -> bool:
    """Whether a run with this name and seed went on for as long as this one is to, or diverged."""
    run = known.get((task.experiment.name, task.job.variant, task.job.seed))
    if run is None:
        return False
    asked = as_numbers(task.config)
    lengths = [name for name in LENGTHS if name in asked and name in run.metrics]
    diverged = any(run.metrics.get(name) is not None for name in DIVERGED)
    return diverged or all(run.metrics[name] >= asked[name] for name in lengths)


def run_queue(
    items: Sequence[Item], workers: int, end: float, say: Callable[[str], None] = print
) -> bool:
    """Do runs in order, and interrupt those in progress when the time is up.

    Args:
        items: what to do.
        workers: number of processes.
        end: when the time is up, by `time.time`; infinite for no limit.
        say: takes a line about every run that ended.

    Returns:
        Whether all runs were done before the end of the time.

    Raises:
        RuntimeError: if runs failed; the others are done all the same.
    """
    done, failures, left = 0, dict[str, Exception](), len(items)
    try:
        with _interrupted_at(end), closing(in_processes(do_in_time, items, workers)) as outcomes:
            for item, outcome in outcomes:
                name, left = f"{item.task.experiment.name} {item.task.name}", left - 1
                if isinstance(outcome, Exception):
                    failures[f"{name}: {type(outcome).__name__}: {outcome}"] = outcome
                done += isinstance(outcome, Run)
                say(f"{name}: {_ended(outcome)}; {left} in the list{_time_left(end)}")
    except TimeIsUp:
        say(f"time is up; {left} runs of the list are not done")
    except KeyboardInterrupt:
        say(f"interrupted: {left} runs of the list are not done; the same command goes on")
        raise
    if failures:
        raise RuntimeError(
            f"{len(failures)} of {len(items)} runs failed; give the command again to go on: "
            + "; ".join(failures)
        ) from next(iter(failures.values()))
    return done == len(items)


def _ended(outcome: Run | Exception | None) -> str:
    """How a run ended, in a few words."""
    if isinstance(outcome, Run):
        return f"{outcome.seconds:.0f} s"
    return "not begun" if outcome is None else f"{type(outcome).__name__}: {outcome}"


def _time_left(end: float) -> str:
    return "" if math.isinf(end) else f", {end - time.time():.0f} s left"


def pack(folder: Path, archive: Path, largest: int = 16 << 20) -> list[Path]:
    """Write what is needed of the runs in a folder to go on elsewhere, as a zip file.

    Of finished runs these are the results, logs and pictures, of others all files.

    Args:
        folder: of all runs.
        archive: to be written.
        largest: leave out larger files, in bytes, with the rest of their run's training folder: a
            checkpoint is useless in parts.

    Returns:
        The files that were left out.
    """
    skipped = {p.parent for p in folder.rglob("training/**/*") if p.stat().st_size > largest}
    left_out = []
    with ZipFile(archive, "w", ZIP_DEFLATED) as target:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            log = path.name == "log.jsonl"
            trains = "training" in path.relative_to(folder).parts
            if trains and not log and _is_finished(path, folder):
                continue
            if skipped.intersection(path.parents) and not log:
                left_out.append(path)
            else:
                target.write(path, path.relative_to(folder))
    return left_out


def _is_finished(path: Path, folder: Path) -> bool:
    """Whether a file belongs to a finished run."""
    return any((above / RUN).exists() for above in path.parents if above.is_relative_to(folder))


def do_in_time(item: Item) -> Run | None:
    """Do a run; or None, if it is too late to begin it."""
    return None if time.time() > item.latest else do(item.task)


class TimeIsUp(KeyboardInterrupt):
    """The end of the time, at which runs do what they do when a user interrupts them."""


def _raise_time_is_up(*_: Any) -> None:
    raise TimeIsUp


@contextmanager
def _interrupted_at(end: float) -> Iterator[None]:
    """Raise `TimeIsUp` in this thread, the main one, when the time is up."""
    if math.isinf(end):
        yield
        return
    before = signal.signal(signal.SIGALRM, _raise_time_is_up)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, end - time.time()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""An experiment: settings, variants of them, and a function from settings to metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

Metrics = dict[str, Any]
"""Measurements of a run: numbers, strings and lists that JSON can hold."""


@dataclass(frozen=True)
class Job:
    """Variant, seed, device and folders of one run.

    Attributes:
        variant: name of the variant.
        seed: of all random numbers.
        device: of the computation.
        folder: for checkpoints and pictures of this run.
        data_dir: folder with data files; None is the default of `datasets.load`.
        progress: show a progress bar.
    """

    variant: str
    seed: int
    device: torch.device
    folder: Path
    data_dir: str | None = None
    progress: bool = False

    def generator(self, stream: int = 0, device: str | torch.device | None = None) -> Any:
        """A new generator; runs of one seed draw the same numbers from the same stream.

        Args:
            stream: number of the stream.
            device: of the generator; None is the job's device.
        """
        where = self.device if device is None else device
        return torch.Generator(where).manual_seed((self.seed << 16) + stream)


@dataclass(frozen=True)
class Run:
    """A finished run: settings, results and provenance.

    Attributes:
        experiment: name of the experiment.
        variant: name of the variant.
        seed: of all random numbers.
        config: the settings.
        metrics: the measurements.
        seconds: time in the process that finished it.
        device: model of the processor.
        versions: of Python and of packages.
        commit: that was checked out, if known.
        command: what to type for the same run.
        date: of its end.
        smoke: it was a smoke test, whose numbers mean nothing.
    """

    experiment: str
    variant: str
    seed: int
    config: dict[str, Any]
    metrics: Metrics
    seconds: float
    device: str
    versions: dict[str, str | None]
    commit: str | None
    command: str
    date: str
    smoke: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: of the command, such as "table-nice".
        summary: one line for the list of experiments.
        config: a frozen dataclass of numbers and strings, whose defaults are the paper's.
        variants: rows of the table, each with the settings in which it differs.
        smoke: settings of a smoke test that takes seconds and needs no data.
        run: from settings and job to metrics; continues from its own checkpoints.
        columns: heading of each metric in the report.
        plot: writes pictures of finished runs into a folder.
        notes: sentences of the report with computed numbers.
        reached: where a run ended that ended early, such as "40000 of 100000 iterations"; empty if
            it ran to the end.
        unfinished: metrics in the folder of a run that was cut, if it has any.
        interchangeable: settings that change the time of a run, not what it estimates; a finished
            run counts whatever they were, and also if it is older than they are.
        without_paper: patterns of variants beside which no number of the paper is shown: their data
            are others, or they are shorter on purpose.
    """

    name: str
    summary: str
    config: type[Any]
    variants: Mapping[str, Mapping[str, Any]]
    smoke: Mapping[str, Any]
    run: Callable[[Any, Job], Metrics]
    columns: Mapping[str, str]
    plot: Callable[[Sequence[Run], Path], list[Path]] | None = None
    notes: Callable[[Sequence[Run]], list[str]] | None = field(default=None)
    reached: Callable[[Run], str] | None = None
    unfinished: Callable[[Path], Metrics | None] | None = None
    interchangeable: tuple[str, ...] = ()
    without_paper: tuple[str, ...] = ()

    def settings(self, variant: str, overrides: Mapping[str, Any], smoke: bool = False) -> Any:
        """The settings of a variant.

        Args:
            variant: one of the variants.
            overrides: settings given by the user, as values or as strings to be parsed.
            smoke: use the settings of the smoke test.

        Raises:
            ValueError: if there is no such setting, or its value cannot be parsed.
        """
        config = replace(self.config(), **self.variants[variant])
        if smoke:
            config = replace(config, **self.smoke)
        known = {f.name: getattr(config, f.name) for f in fields(config)}
        read = {name: _read(name, value, known) for name, value in overrides.items()}
        return replace(config, **read)


def as_numbers(config: Any) -> dict[str, Any]:
    """Settings as JSON represents them."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(config).items()}


def _read(name: str, value: Any, known: Mapping[str, Any]) -> Any:
    """The value of a setting, parsed if it is a string."""
    if name not in known:
        raise ValueError(
            f"settings must be among {', '.join(known)}, got {name!r}; "
            "write them as --set name=value"
        )
    if not isinstance(value, str) or isinstance(known[name], str):
        return value
    words: dict[str, Any] = {"none": None, "true": True, "false": False}
    if value.lower() in words:
        return words[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    if known[name] is None:
        return value
    raise ValueError(
        f"{name} must be a number like {known[name]!r}, got {value!r}; write --set {name}=1"
    )

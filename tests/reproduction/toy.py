"""An experiment that takes no time: the mean of some random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from reproduction.experiment import Experiment, Job, Metrics, Run


@dataclass(frozen=True)
class Config:
    num: int = 4
    shift: float = 0.0
    name: str = "plain"
    limit: float | None = None


def run(config: Config, job: Job) -> Metrics:
    if config.name == "broken":
        raise KeyError("broken on purpose")
    x = torch.randn(config.num, generator=job.generator())
    with (job.folder / "calls").open("a") as calls:
        calls.write("x")
    return {"mean": x.mean().item() + config.shift, "mean_se": 0.25}


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    path = folder / "toy.png"
    path.write_bytes(b"")
    return [path]


def notes(runs: Sequence[Run]) -> list[str]:
    return [f"{len(runs)} runs in all."]


TOY = Experiment(
    name="toy",
    summary="Means of random numbers.",
    config=Config,
    variants={"low": {}, "high/more": {"shift": 10.0}, "broken": {"name": "broken"}},
    smoke={"num": 2},
    run=run,
    columns={"mean": "mean"},
    plot=plot,
    notes=notes,
)

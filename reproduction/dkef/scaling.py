"""Time and memory of a training step of DKEF against the dimension (the paper's scaling figure).

A step is what the paper calls a minibatch of 100: solve alpha on 100 points, take the loss of 100
others, the gradients of all parameters through both, and an update by Adam. All objectives of one
dimension are timed in turn, in one process, so that their ratios can be compared even on a machine
that is used by others. Seeds are repetitions.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.provenance import device_name
from benchmarks.harness.timing import Step, interleaved, peak_bytes, seconds_of
from reproduction.dkef.fitting import two_stage_loss
from reproduction.dkef.scaling_report import UNIT, notes, plot, reference_dim
from reproduction.experiment import Experiment, Job, Metrics, as_numbers
from reproduction.files import read_json
from reproduction.objectives import METHODS, objective
from scorematching._files import write_atomically
from scorematching.capture import CapturedStep
from scorematching.models import DKEF

Cell = dict[str, Any]
"""One objective at one dimension: "seconds" and "peak_bytes", or in "missing" the reason."""


@dataclass(frozen=True)
class Config:
    """Settings; the defaults are those of Section 5.1 and Appendix C.1 unless marked as ours."""

    device: str = "cpu"  # "cpu" or "cuda"
    capture: bool = False  # on a GPU, replay the step as one CUDA graph (ours)
    dims: str = "10,20,50,100,200,400,784,1000,1600"  # ours: the paper's axis has no numbers
    objectives: str = ",".join(METHODS)
    batch_size: int = 100  # 5.1; as many points again for alpha
    num_inducing: int = 200  # 5.1
    num_kernels: int = 3  # C.1
    width: int = 30  # C.1
    # Ours: a step takes the same time at any rate, and at this one nothing diverges.
    lr: float = 1e-6
    sigma: float = 0.1  # of DSM, whose time does not depend on it
    refit: int = 0  # points to solve alpha on after a step (released program: 1000)
    validate: int = 0  # points to take the loss of after that (released program: 540)
    rounds: int = 20  # every objective is timed once in each
    dim_seconds: float = 300.0  # of one dimension: fewer rounds if they would take longer
    step_seconds: float = 60.0  # an objective with a longer step is left out from there on


VARIANTS: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu"},
    "cuda": {"device": "cuda"},
    "cuda-captured": {
        "device": "cuda",
        "capture": True,
        "dims": f"{Config.dims},2500,4000",
    },
}

SMOKE = {
    "dims": "2,5",
    "batch_size": 8,
    "num_inducing": 5,
    "num_kernels": 2,
    "width": 3,
    "rounds": 1,
}


def run(config: Config, job: Job) -> Metrics:
    """Time every objective at every dimension; dimensions that are already measured are kept.

    Args:
        config: the settings.
        job: seed and folder; the device is the variant's.

    Returns:
        Median seconds and peak memory of a step by objective and dimension, the reasons for
        missing ones, and the times relative to DSM.

    Raises:
        ValueError: if the variant needs a GPU and there is none, or settings contradict each
            other.
    """
    names, dims = config.objectives.split(","), sorted(map(int, config.dims.split(",")))
    check_settings(config)
    path = job.folder / "cells.json"
    cells = _earlier(path, config)
    for dim in dims:
        if str(dim) not in cells:
            stopped = _stopped(cells)
            cells[str(dim)] = measure(config, job, dim, names, stopped)
            document = {"config": as_numbers(config), "cells": cells}
            write_atomically(path, json.dumps(document).encode())
    found = {d: cells[str(d)] for d in dims}
    return {
        **{key: _by_objective(found, names, key) for key in ("seconds", "peak_bytes", "missing")},
        "quartiles": _by_objective(found, names, "quartiles"),
        "rounds": {
            str(d): max(c.get("rounds", 0) for c in row.values()) for d, row in found.items()
        },
        "threads": torch.get_num_threads(),
        "processor": device_name(config.device),
        **_compared(found),
    }


def check_settings(config: Config) -> None:
    """Raise an error if these settings cannot be measured on this machine."""
    if config.device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", got {config.device!r}')
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            'device must be "cpu" where torch sees no GPU, got "cuda"; time the CPU with --only cpu'
        )
    if config.capture and (config.device == "cpu" or config.refit or config.validate):
        raise ValueError(
            "capture must be False on a CPU and where alpha is solved again after a step, got "
            f"capture=True with device={config.device!r}, refit={config.refit} and "
            f"validate={config.validate}; only a bare step on a GPU can be a CUDA graph"
        )


def measure(
    config: Config, job: Job, dim: int, names: Sequence[str], stopped: Mapping[str, str]
) -> dict[str, Cell]:
    """The cells of one dimension.

    Args:
        config: the settings.
        job: seed and folder.
        dim: D.
        names: of the objectives.
        stopped: objectives to leave out, with the reason.
    """
    cells: dict[str, Cell] = {}
    ready: dict[str, Step] = {}
    for name in names:
        if name in stopped:
            cells[name] = {"missing": stopped[name]}
            continue
        steps = prepare(config, job, dim, name)
        cells[name] = _first_cell(steps, config)
        if "missing" not in cells[name]:
            ready[name] = steps[-1]
        del steps
        _release(config.device)
    if ready:
        each = sum(cells[name]["seconds"] for name in ready)
        rounds = max(3, min(config.rounds, int(config.dim_seconds / each)))
        times = interleaved(list(ready.values()), rounds, 1, config.device, job.seed)
        for name, found in zip(ready, times):
            cells[name]["seconds"] = found["median"]
            cells[name]["quartiles"] = [found["q25"], found["q75"]]
            cells[name]["rounds"] = found["rounds"]
    return cells


def prepare(config: Config, job: Job, dim: int, name: str) -> list[Step]:
    """The first training step of an objective: eager, and captured too if configured."""
    num = max(2 * config.batch_size, config.num_inducing, config.refit)
    points = torch.randn(num + config.validate, dim, generator=job.generator(1, "cpu"))
    model = DKEF(
        dim,
        num_inducing=config.num_inducing,
        num_kernels=config.num_kernels,
        width=config.width,
        generator=job.generator(2, "cpu"),
    )
    model.initialise(points[:num], job.generator(3, "cpu"))
    model, points = model.to(config.device), points.to(config.device)
    generator = job.generator(4, config.device)
    of_points, batch = objective(name, config.sigma), points[: 2 * config.batch_size]
    loss: Any = two_stage_loss(of_points)
    on_gpu = config.device == "cuda"
    adam = torch.optim.Adam(model.parameters(), config.lr, capturable=on_gpu)

    def eager() -> None:
        adam.zero_grad(set_to_none=True)
        loss(model, batch, generator).mean().backward()
        adam.step()
        if config.refit:
            model.fit_alpha(points[: config.refit], of_points, generator)
        if config.validate:
            with torch.no_grad():
                of_points(model, points[num:], generator)

    if not config.capture:
        return [eager]
    captured = CapturedStep(model, loss, adam, generator=generator)
    return [eager, lambda: captured(batch)]


def _first_cell(steps: Sequence[Step], config: Config) -> Cell:
    """Time and memory of the first steps of an objective, or why it is left out."""
    try:
        first = seconds_of(steps[0], config.device)
        if first > config.step_seconds:
            return {"missing": f"a step took {first:.0f} s, more than {config.step_seconds:.0f}"}
        memory = peak_bytes(steps[0], config.device)
        # A captured step runs three times eagerly, then it is recorded, then replayed.
        times = [seconds_of(steps[-1], config.device) for _ in range(5 if config.capture else 1)]
        return {"seconds": times[-1], "peak_bytes": memory}
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        return {"missing": f"out of memory ({str(error).splitlines()[0][:100]})"}


def _is_out_of_memory(error: BaseException) -> bool:
    # The CPU allocator raises a plain RuntimeError.
    words = str(error)
    named = "can't allocate memory" in words or "not enough memory" in words
    return named or isinstance(error, (torch.OutOfMemoryError, MemoryError))


def _release(device: str) -> None:
    """Free the GPU memory that a failed step may have left allocated."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _earlier(path: Path, config: Config) -> dict[str, dict[str, Cell]]:
    """The cells of an interrupted run with the same settings."""
    if not path.exists():
        return {}
    document = read_json(path)
    return dict(document["cells"]) if document["config"] == as_numbers(config) else {}


def _stopped(cells: Mapping[str, Mapping[str, Cell]]) -> dict[str, str]:
    """Objectives that failed at a lower dimension, with the reason."""
    return {
        name: cell["missing"] if "not tried" in cell["missing"] else _not_tried(dim, cell)
        for dim, row in cells.items()
        for name, cell in row.items()
        if "missing" in cell
    }


def _not_tried(dim: str, cell: Cell) -> str:
    return f"not tried after D = {dim}: {cell['missing']}"


def _by_objective(
    cells: Mapping[int, Mapping[str, Cell]], names: Sequence[str], key: str
) -> dict[str, dict[str, Any]]:
    """One entry of all cells, by objective and dimension."""
    return {
        name: {str(d): row[name][key] for d, row in cells.items() if key in row[name]}
        for name in names
    }


def _compared(cells: Mapping[int, Mapping[str, Cell]]) -> Metrics:
    """Times relative to DSM at the dimension of comparison, for the table."""
    timed = [d for d, row in cells.items() if "seconds" in row.get(UNIT, {})]
    if not timed:
        return {}
    dim = reference_dim(timed)
    unit = cells[dim][UNIT]["seconds"]
    ratios = {f"{n} / {UNIT}": c["seconds"] / unit for n, c in cells[dim].items() if "seconds" in c}
    return {"compared_at": dim, "unit_seconds": unit, **ratios}


EXPERIMENT = Experiment(
    name="figure-scaling",
    summary="DKEF in up to 4000 dimensions: time and memory of a minibatch by every objective.",
    config=Config,
    variants=VARIANTS,
    smoke=SMOKE,
    run=run,
    columns={
        "compared_at": "D",
        "unit_seconds": f"{UNIT}, s",
        **{f"{name} / {UNIT}": f"{name} / {UNIT}" for name in METHODS if name != UNIT},
    },
    plot=plot,
    notes=notes,
)

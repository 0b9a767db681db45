"""Time and memory of a training step of DKEF against the dimension (the paper's scaling figure).

A step is what the paper calls a minibatch of 100: alpha solved on 100 points, the loss of 100
others, gradients of all parameters through both, and an update by Adam. All objectives of one
dimension are timed in turn, in one process, so that their ratios mean something on a machine that
others use as well. Seeds are repetitions.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness.provenance import device_name
from benchmarks.harness.timing import Step, interleaved, peak_bytes, seconds_of
from reproduction.experiment import Experiment, Job, Metrics, Run, as_numbers
from reproduction.objectives import METHODS, objective
from scorematching.capture import CapturedStep
from scorematching.models import DKEF
from scorematching.objectives import Objective
from scorematching.training.checkpoint import write_atomically

Cell = dict[str, Any]
"""One objective at one dimension: seconds and peak_bytes, or missing, which says why not."""

UNIT = "DSM"
"""What times are compared with: it has no second derivative to pay for."""

REFERENCE = 784
"""The dimension at which they are compared."""

STEEP = 100
"""The dimension from which slopes are fitted; below it, time is mostly what any step takes."""


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
    refit: int = 0  # points to solve alpha on after a step; the released programs time 1000 of them
    validate: int = 0  # points to take the loss of after that; theirs are 540
    rounds: int = 20  # every objective is timed once in each
    dim_seconds: float = 300.0  # fewer rounds where they would take longer than this
    step_seconds: float = 60.0  # an objective with a longer step is dropped from there on


VARIANTS: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu"},
    "cuda": {"device": "cuda"},
    "cuda-captured": {"device": "cuda", "capture": True},
}

SMOKE = {
    "dims": "2,5",
    "batch_size": 8,
    "num_inducing": 5,
    "num_kernels": 2,
    "width": 3,
    "rounds": 1,
}


class TwoStage(Objective):
    """The loss of one half of a batch, with alpha from the other.

    Args:
        objective: of both.
    """

    def __init__(self, objective: Objective) -> None:
        """Keep the objective."""
        self.objective = objective

    def __call__(self, model: Any, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Losses of the second half, ``(2 N, D) -> (N,)``."""
        losses: Tensor = model.two_stage_loss(self.objective, *x.chunk(2), generator)
        return losses


def run(config: Config, job: Job) -> Metrics:
    """Time every objective at every dimension; dimensions that were done before are kept.

    Args:
        config: the settings.
        job: the circumstances; the device is the variant's.

    Returns:
        Median seconds and peak memory of a step by objective and dimension, what is missing and
        why, and the times relative to DSM.

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
    """Refuse what cannot be measured here, before anything is."""
    if config.device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", got {config.device!r}')
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            'device must be there, got "cuda" where torch sees no GPU; time the processor with '
            "--only cpu"
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
        job: the circumstances.
        dim: D.
        names: of the objectives.
        stopped: objectives that are not to be tried, and why.
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
    """The step of an objective at the start of training, eager and, if wanted, captured."""
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
    loss, batch = TwoStage(objective(name, config.sigma)), points[: 2 * config.batch_size]
    on_gpu = config.device == "cuda"
    adam = torch.optim.Adam(model.parameters(), config.lr, capturable=on_gpu)

    def eager() -> None:
        adam.zero_grad(set_to_none=True)
        loss(model, batch, generator).mean().backward()
        adam.step()
        if config.refit:
            model.fit_alpha(loss.objective, points[: config.refit], generator)
        if config.validate:
            with torch.no_grad():
                loss.objective(model, points[num:], generator)

    if not config.capture:
        return [eager]
    captured = CapturedStep(model, loss, adam, generator=generator)
    return [eager, lambda: captured(batch)]


def slope(dims: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of D by which times grow: least squares on logarithms.

    Example:
        >>> round(slope([100, 200, 400], [1.0, 4.0, 16.0]), 6)
        2.0
    """
    return float(np.polyfit(np.log(dims), np.log(seconds), 1)[0])


def averages(runs: Sequence[Run], key: str, name: str) -> dict[int, float]:
    """The geometric mean over runs of what an objective took at each dimension it got through."""
    found: dict[int, list[float]] = {}
    for each in runs:
        for dim, value in each.metrics[key].get(name, {}).items():
            found.setdefault(int(dim), []).append(math.log(value))
    complete = {d: logs for d, logs in found.items() if len(logs) == len(runs)}
    return {d: math.exp(sum(logs) / len(logs)) for d, logs in sorted(complete.items())}


def notes(runs: Sequence[Run]) -> list[str]:
    """Slopes, ratios to DSM, memory, and what could not be measured."""
    found = []
    for variant, mine in _by_variant(runs).items():
        names = mine[0].config["objectives"].split(",")
        seconds = {name: averages(mine, "seconds", name) for name in names}
        found += _slope_notes(variant, seconds)
        memory = {name: averages(mine, "peak_bytes", name) for name in names}
        found += _ratio_notes(variant, seconds, "seconds", 1.0)
        found += _ratio_notes(variant, memory, "MB of memory", 1e-6)
        for name, missing in mine[0].metrics["missing"].items():
            found += [
                f"{variant}: {name} is missing at D = {d}: {why}." for d, why in missing.items()
            ]
    return found


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Seconds and memory of a step against the dimension, a picture for each variant."""
    from matplotlib.figure import Figure

    paths = []
    for variant, mine in _by_variant(runs).items():
        figure = Figure(figsize=(10.5, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for name in mine[0].config["objectives"].split(","):
            for axis, key, unit in ((left, "seconds", 1.0), (right, "peak_bytes", 1e-6)):
                curve = averages(mine, key, name)
                label = name + ("" if not mine[0].metrics["missing"].get(name) else " (stopped)")
                values = [unit * value for value in curve.values()]
                axis.loglog(list(curve), values, label=label, **_style(name))
        left.set(xlabel="dimension D", ylabel="seconds per minibatch")
        right.set(xlabel="dimension D", ylabel="peak memory of a minibatch, MB")
        right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        batch, processor = mine[0].config["batch_size"], mine[0].metrics["processor"]
        figure.suptitle(f"DKEF, minibatches of {batch}, {variant}: {processor}", fontsize=10)
        paths.append(folder / f"figure-scaling-{variant}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths


def _style(name: str) -> dict[str, Any]:
    """A look for an objective's curve by which it can be told from others that it lies on."""
    i = METHODS.index(name)
    return {
        "color": f"C{i}",
        "marker": "osv^Dx"[i],
        "linestyle": ("-", "--", ":")[i % 3],
        "markersize": 8 - i,
        "fillstyle": "none",
    }


def _first_cell(steps: Sequence[Step], config: Config) -> Cell:
    """What the first steps of an objective say: whether it fits, in time and in memory."""
    try:
        first = seconds_of(steps[0], config.device)
        if first > config.step_seconds:
            return {"missing": f"a step took {first:.0f} s, more than {config.step_seconds:.0f}"}
        memory = peak_bytes(steps[0], config.device)
        # A captured step runs eagerly three times and is then recorded, before it is replayed.
        times = [seconds_of(steps[-1], config.device) for _ in range(5 if config.capture else 1)]
        return {"seconds": times[-1], "peak_bytes": memory}
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        return {"missing": f"out of memory ({str(error).splitlines()[0][:100]})"}


def _is_out_of_memory(error: BaseException) -> bool:
    # A processor's allocator has no class of its own for it.
    words = str(error)
    named = "can't allocate memory" in words or "not enough memory" in words
    return named or isinstance(error, (torch.OutOfMemoryError, MemoryError))


def _release(device: str) -> None:
    """Give back what a step that failed on a GPU may have left behind."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _earlier(path: Path, config: Config) -> dict[str, dict[str, Cell]]:
    """The cells of a run with these settings that was interrupted."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    return dict(document["cells"]) if document["config"] == as_numbers(config) else {}


def _stopped(cells: Mapping[str, Mapping[str, Cell]]) -> dict[str, str]:
    """Objectives that failed at a lower dimension, and why."""
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
    dim = _reference(timed)
    unit = cells[dim][UNIT]["seconds"]
    ratios = {f"{n} / {UNIT}": c["seconds"] / unit for n, c in cells[dim].items() if "seconds" in c}
    return {"compared_at": dim, "unit_seconds": unit, **ratios}


def _reference(dims: Sequence[int]) -> int:
    """The dimension at which to compare: the usual one, or the one that is closest to it."""
    return min(dims, key=lambda d: abs(d - REFERENCE))


def _by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    variants = dict.fromkeys(each.variant for each in runs)
    return {v: [each for each in runs if each.variant == v] for v in variants}


def _slope_notes(variant: str, seconds: Mapping[str, Mapping[int, float]]) -> list[str]:
    """How times grow with D, for every objective that got far enough to say."""
    steep = {n: {d: t for d, t in row.items() if d >= STEEP} for n, row in seconds.items()}
    steep = {name: row for name, row in steep.items() if len(row) >= 2}
    if not steep:
        return []
    last = max(d for row in steep.values() for d in row)
    powers = (f"{slope(list(r), list(r.values())):.2f} ({name})" for name, r in steep.items())
    return [
        f"{variant}: from D = {STEEP} to {last}, the time of a step grows like D to the power "
        f"{_listed(list(powers))}."
    ]


def _ratio_notes(
    variant: str, values: Mapping[str, Mapping[int, float]], what: str, unit: float
) -> list[str]:
    """What a step takes relative to DSM at the dimension of comparison."""
    if not values.get(UNIT):
        return []
    dim = _reference(list(values[UNIT]))
    mine = unit * values[UNIT][dim]
    ratios = [
        f"{name} {row[dim] / values[UNIT][dim]:.2f}"
        for name, row in values.items()
        if name != UNIT and dim in row
    ]
    if not ratios:
        return []
    return [
        f"{variant}: at D = {dim} a step takes {mine:.3g} {what} by {UNIT}, and that times "
        f"{_listed(ratios)}."
    ]


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


EXPERIMENT = Experiment(
    name="figure-scaling",
    summary="DKEF in up to 1600 dimensions: time and memory of a minibatch by every objective.",
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

"""Pictures and notes of the scaling experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.experiment import Run
from reproduction.objectives import METHODS
from scorematching.plot.canvas import shared_legend
from scorematching.plot.palette import style

UNIT = "DSM"
"""The unit of time: this objective needs no second derivative."""

REFERENCE = 784
"""The dimension at which times are compared."""

STEEP = 100
"""Slopes are fitted from this dimension on; below it most of the time does not depend on D."""


def slope(dims: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of D with which times grow: least squares on logarithms.

    Example:
        >>> round(slope([100, 200, 400], [1.0, 4.0, 16.0]), 6)
        2.0
    """
    return float(np.polyfit(np.log(dims), np.log(seconds), 1)[0])


def averages(runs: Sequence[Run], key: str, name: str) -> dict[int, float]:
    """Geometric means over runs of an objective's metric, by dimension, where all runs have it."""
    found: dict[int, list[float]] = {}
    for each in runs:
        for dim, value in each.metrics[key].get(name, {}).items():
            found.setdefault(int(dim), []).append(math.log(value))
    complete = {d: logs for d, logs in found.items() if len(logs) == len(runs)}
    return {d: math.exp(sum(logs) / len(logs)) for d, logs in sorted(complete.items())}


def notes(runs: Sequence[Run]) -> list[str]:
    """Slopes, ratios to DSM, memory, and what is missing."""
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
        shared_legend(figure, columns=6)
        batch, processor = mine[0].config["batch_size"], mine[0].metrics["processor"]
        figure.suptitle(f"DKEF, minibatches of {batch}, {variant}: {processor}", fontsize=10)
        paths.append(folder / f"figure-scaling-{variant}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths


def _style(name: str) -> dict[str, Any]:
    """Colour, marker and line of an objective; distinguishable where curves coincide."""
    i = METHODS.index(name)
    return {
        "color": style(name).color,
        "marker": style(name).marker,
        "linestyle": ("-", "--", ":")[i % 3],
        "markersize": 8 - i,
        "fillstyle": "none",
    }


def reference_dim(dims: Sequence[int]) -> int:
    """The measured dimension that is closest to `REFERENCE`."""
    return min(dims, key=lambda d: abs(d - REFERENCE))


def _by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    variants = dict.fromkeys(each.variant for each in runs)
    return {v: [each for each in runs if each.variant == v] for v in variants}


def _slope_notes(variant: str, seconds: Mapping[str, Mapping[int, float]]) -> list[str]:
    """How times grow with D, for every objective with two dimensions or more."""
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
    """Time or memory of a step relative to DSM, at the dimension of comparison and the largest."""
    dims = list(values.get(UNIT, ()))
    compared = dict.fromkeys([reference_dim(dims), max(dims)]) if dims else {}
    found = []
    for dim in compared:
        mine = values[UNIT][dim]
        digits = f"{unit * mine:.0f}" if unit * mine >= 1000 else f"{unit * mine:.3g}"
        others = {name: row[dim] for name, row in values.items() if name != UNIT and dim in row}
        ratios = [f"{name} {value / mine:.2f}" for name, value in others.items()]
        if ratios:
            found.append(
                f"{variant}: at D = {dim} a step takes {digits} {what} by {UNIT}, and that times "
                f"{_listed(ratios)}."
            )
    return found


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)

"""Figures and notes of the experiment with NICE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reproduction.experiment import Run
from reproduction.pictures import panels
from reproduction.report import by_variant
from scorematching.plot.canvas import shared_legend, tidy
from scorematching.plot.palette import style

EPOCHS = 100
"""Of the paper's recipe."""

Curve = Sequence[Sequence[float]]


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Validation losses over epochs; and over time, for exact score matching and SSM-VR."""
    recipes = sorted({_recipe(run) for run in runs} - {"sigma"})
    over_epochs = _draw(runs, recipes, lambda run: run.metrics["valid_sm_by_epoch"], "epoch")
    over_epochs.savefig(folder / "table-nice.png", dpi=150)
    written = [folder / "table-nice.png"]
    both = [recipe for recipe in recipes if {"SM", "SSM-VR"} <= _names(runs, recipe)]
    if both:
        compared = [run for run in runs if _name(run) in ("SM", "SSM-VR")]
        _draw(compared, both, loss_by_second, "seconds of training").savefig(
            folder / "table-nice-time.png", dpi=150
        )
        written.append(folder / "table-nice-time.png")
    return written


def loss_by_second(run: Run) -> Curve:
    """Validation loss against seconds; where these were not kept, epochs at their mean pace."""
    if run.metrics.get("valid_sm_by_second"):
        return list(run.metrics["valid_sm_by_second"])
    pace = run.metrics["seconds_per_epoch"]
    return [[epoch * pace, loss] for epoch, loss in run.metrics["valid_sm_by_epoch"]]


def _draw(
    runs: Sequence[Run], recipes: Sequence[str], curve: Callable[[Run], Curve], label: str
) -> Any:
    """A figure with one panel for each recipe and one line for each run."""
    figure, axes = panels(len(recipes), 5.5, 4.2)
    for axis, recipe in zip(axes, recipes):
        for run in runs:
            points = curve(run)
            if _recipe(run) == recipe and points:
                look = style(_name(run))
                line = {"color": look.color, "linestyle": look.linestyle}
                marker = look.marker if len(points) == 1 else ""
                axis.plot(*zip(*points), label=_name(run), marker=marker, **line)
        axis.set(title=f"{recipe} recipe", xlabel=label, ylabel="validation SM loss")
        axis.set_yscale("symlog", linthresh=1000)
        axis.set_yticks([tick for tick in axis.get_yticks() if tick == 0 or abs(tick) >= 1000])
        tidy(axis)
    shared_legend(figure, columns=9)
    return figure


def notes(runs: Sequence[Run]) -> list[str]:
    """Sentences about time, seeds, divergence and the sigma of DSM."""
    found = []
    for variant, mine in by_variant(runs).items():
        if _name(mine[0]) in ("SM", "SSM-VR"):
            found.append(_pace(variant, mine))
            timed = [m for m in mine if len(m.metrics.get("valid_sm_by_second", ())) > 1]
            found += [_start(variant, run) for run in timed]
        found += _by_seed(variant, [run for run in mine if "test_sm" in run.metrics])
        for run in mine:
            if run.metrics["diverged_at_step"] is not None:
                step = run.metrics["diverged_at_step"]
                found.append(
                    f"{variant} (seed {run.seed}) diverged at step {step}; its best weights are "
                    "shown."
                )
        sigmas = [run.metrics["parzen_sigma"] for run in mine if run.metrics["parzen_sigma"]]
        if sigmas:
            numbers = ", ".join(dict.fromkeys(f"{sigma:.3f}" for sigma in sigmas))
            found.append(
                f"The heuristic's sigma, by a search to convergence ({variant}): {numbers}; the "
                "paper has 1.74."
            )
    return found + _best_sigma(runs)


def _pace(variant: str, runs: Sequence[Run]) -> str:
    """Seconds of an epoch, in the order of seeds."""
    each = ", ".join(f"{run.metrics['seconds_per_epoch']:.2g}" for run in runs)
    return f"Seconds per epoch of {variant}: {each}."


def _start(variant: str, run: Run) -> str:
    """Seconds to the first validation, which compilation is a part of, and of an epoch after it."""
    seconds, epochs = (
        [x for x, _ in run.metrics[key]] for key in ("valid_sm_by_second", "valid_sm_by_epoch")
    )
    pace = (seconds[-1] - seconds[0]) / max(1, epochs[-1] - epochs[0])
    return (
        f"Seconds of {variant} (seed {run.seed}) to the end of epoch {epochs[0]:.0f}, and of each "
        f"epoch after it: {seconds[0]:.0f} and {pace:.2f}."
    )


def _by_seed(variant: str, runs: Sequence[Run]) -> list[str]:
    """What each seed ended with, if there are several."""
    names = {"test_sm": "SM loss", "test_ll": "log-likelihood"} if len(runs) > 1 else {}
    return [
        f"Test {name} of {variant} by seed: "
        + ", ".join(f"{run.metrics[key]:.0f}" for run in runs)
        + "."
        for key, name in names.items()
    ]


def _best_sigma(runs: Sequence[Run]) -> list[str]:
    grid = {
        run.metrics["sigma"]: run.metrics["valid_sm"] for run in runs if _recipe(run) == "sigma"
    }
    if not grid:
        return []
    best = min(grid, key=lambda sigma: grid[sigma])
    return [f"Least validation loss of DSM's grid after 10 epochs: sigma = {best}."]


def reached(run: Run) -> str:
    """Where a run ended before the epochs of the paper."""
    done = run.metrics["epochs"]
    return f"{done:.3g} of {EPOCHS} epochs" if done < EPOCHS and not run.smoke else ""


def _recipe(run: Run) -> str:
    return run.variant.split("/")[0]


def _name(run: Run) -> str:
    return run.variant.split("/")[1]


def _names(runs: Sequence[Run], recipe: str) -> set[str]:
    return {_name(run) for run in runs if _recipe(run) == recipe}

"""The page docs/coverage.md and its picture, from the numbers of `benchmarks.coverage`."""

from __future__ import annotations

from collections.abc import Iterable
from math import erf, sqrt
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with, pyplot, save
from scorematching.plot.palette import style

INTRODUCTION = """# Do the intervals cover?

Data sets of {points} points are drawn from three known models, {datasets} of each, and fitted by
`inference.fit` with exact score matching (SM), sliced score matching (SSM) and its
variance-reduced form (SSM-VR), with M = 1 and 4 directions per point.

- **Gaussian precision**: the six entries of a 3 x 3 precision matrix.
- **Student-t**: three independent coordinates with 8 degrees of freedom; one number of degrees and
  one scale, both on a logarithmic scale.
- **Truncated normal** on the half line x > 0, with weight h = min(log(1 + x), 2); with one
  coordinate a Rademacher direction is exact score matching.

A 95% interval is right if it covers the truth in 95% of the data sets. With {datasets} data sets
the fraction that cover has a standard error of {error:.2%}.
"""

INFLATION = """## Variance that directions add

The variance of the estimates over data sets, relative to exact score matching on the same data
sets, and in brackets what `FitResult.how_many_projections` predicts from one data set (mean over
twenty). Over parameters and sliced objectives, mean prediction and mean measurement differ by
{by_model}. The largest deviation of a single cell is {worst:.1%}, where the measurement itself has
a standard error of {error:.1%}.
"""


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page and its picture; returns the path of the page."""
    draw(document, docs / "img" / "coverage.png")
    page = docs / "coverage.md"
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    error = standard_error(document)
    yield INTRODUCTION.format(points=document["points"], datasets=document["datasets"], error=error)
    yield "![coverage of 95% intervals](img/coverage.png)\n"
    yield verdict(document) + "\n"
    head = ["model", "parameter", *_objectives(document)]
    yield markdown_table([short(name) for name in head], _table(document, "coverage", "{:.1%}"))
    worst, error = worst_prediction(document)
    yield INFLATION.format(worst=worst, error=error, by_model=deviations(document))
    yield markdown_table([short(name) for name in head], _inflation(document))
    yield f"\n`{document['command']}` on {document['device']}; {made_with(document)}.\n"


def verdict(document: dict[str, Any]) -> str:
    """How many intervals are within the error that chance allows."""
    rows, error = document["rows"], standard_error(document)
    off = [abs(row["coverage"] - document["level"]) / error for row in rows]
    two = sum(z > 2 for z in off)
    expected = (1 - erf(2 / sqrt(2))) * len(rows)
    return (
        f"Of {len(rows)} intervals {two} are more than two standard errors from 95% (chance alone "
        f"gives {expected:.0f} on average); the farthest is {max(off):.1f} standard errors off. "
        f"Fits that were refused, which count as not covering: {_failures(rows)}."
    )


def _failures(rows: list[dict[str, Any]]) -> int:
    """Over all models and objectives."""
    counts = {(row["model"], row["objective"]): row["failures"] for row in rows}
    return sum(counts.values())


def worst_prediction(document: dict[str, Any]) -> tuple[float, float]:
    """Largest relative deviation of a prediction, and the relative error of that measurement."""
    return max(
        (abs(row["predicted"] / row["inflation"] - 1), row["inflation_error"] / row["inflation"])
        for row in document["rows"]
    )


def deviations(document: dict[str, Any]) -> str:
    """Relative difference of mean prediction and mean measurement, for every model."""
    found = {}
    for name in dict.fromkeys(row["model"] for row in document["rows"]):
        own = [r for r in document["rows"] if r["model"] == name and r["objective"] != "SM"]
        found[name] = sum(r["predicted"] for r in own) / sum(r["inflation"] for r in own) - 1
    return ", ".join(f"{value:+.1%} ({name})" for name, value in found.items())


def standard_error(document: dict[str, Any]) -> float:
    """Of the fraction of intervals that cover."""
    level = document["level"]
    return float((level * (1 - level) / document["datasets"]) ** 0.5)


def short(name: str) -> str:
    """A narrower heading."""
    return name.replace("Rademacher", "R").replace("Gaussian", "G").replace("M=", "")


def _objectives(document: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["objective"] for row in document["rows"]))


def _lines(document: dict[str, Any]) -> Iterable[tuple[list[str], list[dict[str, Any]]]]:
    """Rows by model and parameter, in the order of objectives."""
    keys = dict.fromkeys((row["model"], row["parameter"]) for row in document["rows"])
    for key in keys:
        yield list(key), [r for r in document["rows"] if (r["model"], r["parameter"]) == key]


def _table(document: dict[str, Any], what: str, form: str) -> list[list[str]]:
    return [[*key, *(form.format(row[what]) for row in rows)] for key, rows in _lines(document)]


def _inflation(document: dict[str, Any]) -> list[list[str]]:
    return [
        [*key, *(f"{row['inflation']:.2f} ({row['predicted']:.2f})" for row in rows)]
        for key, rows in _lines(document)
    ]


def draw(document: dict[str, Any], path: Path) -> None:
    """Coverage of every parameter, by model and objective, with the band that chance allows."""
    plt = pyplot()
    names = list(dict.fromkeys(row["model"] for row in document["rows"]))
    labels, error = _objectives(document), standard_error(document)
    figure, axes = plt.subplots(1, len(names), figsize=(12, 3.6), sharey=True)
    for axis, name in zip(axes, names):
        axis.axvspan(
            *(100 * (document["level"] + k * error) for k in (-2, 2)), color="0.9", zorder=0
        )
        axis.axvline(100 * document["level"], color="0.5", linewidth=1)
        for i, label in enumerate(labels):
            own = [r for r in document["rows"] if (r["model"], r["objective"]) == (name, label)]
            axis.plot(
                [100 * r["coverage"] for r in own],
                [i] * len(own),
                "o",
                color=style("SM").color,
                alpha=0.6,
            )
        axis.set_title(name)
        axis.set_xlabel("coverage of 95% intervals (%)")
    axes[0].set_yticks(range(len(labels)), labels)
    axes[0].invert_yaxis()
    save(figure, path, dpi=110)

"""The page docs/local-curvature.md, from the numbers of `benchmarks.local_curvature`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with

INTRODUCTION = """# What is local curvature smoothing worth?

`LocalCurvatureSmoothing` (LCSS; Osada, Shing and Nishide, NeurIPS 2024) replaces the trace of the
Hessian by ``eps.s(x + sigma eps) / sigma``, which needs no second derivative. Its paper reports
better training than by sliced score matching, for the reason that there is no variance of random
projections. There is variance of eps, though: to first order the term is
``eps.s(x) / sigma + eps' (grad s) eps``. The second part is that of SSM-VR with normal directions;
the first has mean zero and variance ``|s|^2 / sigma^2``, which SSM-VR does not have. And for a
larger sigma the trace is that of a wider neighbourhood, so the gradient is biased.

Measured with a network of two layers of 64 units on a mixture of three normal distributions in
{dim} dimensions, batches of {batch}. Variance is that of the parameter gradient over draws of
the noise, as `variance_report` gives it, with one draw per point for all; time is that of loss
and gradient, relative to SSM-VR with signs (a median, which other work of the machine disturbs);
error is the distance of the expected gradient from that of exact score matching, relative to the
latter, and zero where it is below the noise of the measurement.
"""

HEADINGS = (
    "",
    "sigma",
    "variance / SSM-VR, normal",
    "variance / SSM-VR, signs",
    "variance / data",
    "time / SSM-VR",
    "time x variance / SSM-VR, signs",
    "error of the gradient",
)


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page; returns its path."""
    page = docs / "local-curvature.md"
    docs.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    yield INTRODUCTION.format(dim=document["dim"], batch=document["batch"])
    yield markdown_table(HEADINGS, map(cells, document["rows"]))
    yield conclusion(document["rows"])
    yield f"\n`{document['command']}` on {document['device']}; {made_with(document)}.\n"


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    ratios = (row["over_normal"], row["over_signs"], row["over_data"], row["time"])
    product = row["time"] * row["over_signs"]
    return [
        row["stage"],
        f"{row['sigma']:g}",
        *(f"{value:.3g}" for value in ratios),
        f"{product:.3g}",
        f"{row['error']:.1%}",
    ]


def conclusion(rows: list[dict[str, Any]]) -> str:
    """What the numbers say, in a sentence for each stage."""
    sentences = []
    for stage in dict.fromkeys(row["stage"] for row in rows):
        own = [row for row in rows if row["stage"] == stage]
        small = [row for row in own if row["error"] <= 0.05]
        if not small:
            sentences.append(f"{stage.capitalize()} no radius has an error of at most 5%.")
            continue
        best = min(small, key=lambda row: row["over_signs"])
        sentences.append(
            f"{stage.capitalize()}, among radii with an error of at most 5%, the best is sigma = "
            f"{best['sigma']:g}: {best['over_signs']:.3g} times the variance of SSM-VR with signs "
            f"in {best['time']:.2g} of its time."
        )
    return "\n" + "\n".join(sentences) + "\n"

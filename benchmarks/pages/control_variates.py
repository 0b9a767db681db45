"""The page docs/control-functionals.md, from the numbers of `benchmarks.control_variates`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with

INTRODUCTION = """# What are control functionals worth?

`sm.evaluation.control_variate(f, x, score)` estimates the expectation of f over a model from points
of it. The part of f that a Stein kernel can express has mean zero, so it is subtracted (Oates,
Girolami and Chopin, 2017). What is left at a point is computed without that point, which makes
the estimate unbiased.

Measured with standard normal points, the default kernel and bandwidth, {datasets} samples for
each line.

- **Variance**: of the estimate, relative to the plain mean.
- **Error / sd**: the root mean square of the standard error over the standard deviation of the
  estimate; one is right.
- **Effective count**: `effective_count` of the result, the median: how many of the values the
  standard error rests on, N over their kurtosis.
- **Coverage**: how often 1.96 standard errors to either side hold the truth, for the plain mean,
  too. The fraction has a standard error of at most {error:.1%}.
"""

CONCLUSION = """
On average standard errors are nearly right, {low:.2f} to {high:.2f} of what they should be, and yet
intervals cover less than they say. Inside the cloud of points next to nothing is left of f, so that
what is left at the outermost points decides, in low dimensions one or two of them. The effective
count says when this is so. Where it is below ten, take the standard error for the size of the error
and no more.

Where the variance is above one, use the plain mean: the function is not smooth enough for so few
points. The result has both, and their ratio, `variance_ratio`.
"""

HEADINGS = (
    "function",
    "dimensions",
    "points",
    "variance",
    "error / sd",
    "effective count",
    "coverage",
    "coverage, plain mean",
)


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page; returns its path."""
    page = docs / "control-functionals.md"
    docs.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    error = 0.5 / document["datasets"] ** 0.5
    yield INTRODUCTION.format(datasets=document["datasets"], error=error)
    yield markdown_table(HEADINGS, map(cells, document["rows"]))
    ratios = [row["error_over_sd"] for row in document["rows"]]
    yield CONCLUSION.format(low=min(ratios), high=max(ratios))
    yield f"`{document['command']}` on {document['device']}; {made_with(document)}.\n"


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    return [
        row["question"],
        str(row["dim"]),
        str(row["points"]),
        f"{row['variance_ratio']:.3g}",
        f"{row['error_over_sd']:.2f}",
        f"{row['effective_count']:.1f}",
        f"{row['coverage']:.1%}",
        f"{row['plain_coverage']:.1%}",
    ]

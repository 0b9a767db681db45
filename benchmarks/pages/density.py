"""The page docs/density.md and its picture, from the numbers of `benchmarks.density`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with, pyplot, save

INTRODUCTION = """# How good is DensityEstimator?

`DensityEstimator` (a deep kernel exponential family by default, a flow with `model="nice"`)
against scikit-learn's `KernelDensity` and a Gaussian with full covariance. All are fitted to the
same whitened training points and evaluated at the same held-out points by two measures: the exact
score-matching loss (smaller is better) and the mean log-likelihood (larger is better). The command
below wrote the tables and the picture.

- **Red wine**: eleven measurements of 1359 distinct wines, a fifth of them held out, prepared as
  in Song et al. (2019): uniform noise over the rounding, whitening fitted to the training rows,
  normal noise of 0.05. **With repeated rows**: all 1599 rows, a tenth held out, as in that paper;
  many of its test wines are training wines too, which favours kernels on training points.
- **Banana**: a parabola of curvature 1 in two of eight coordinates. **Mixture**: five normal
  distributions in eight dimensions. 1500 points to learn from, 1500 to test on.
- The bandwidth of `KernelDensity` is chosen by 5-fold cross-validation of the likelihood among
  {bandwidths} values from {low} to {high}; a second one by cross-validation of the score-matching
  loss, so that kernels are at their best in both measures. The best value never lies at an end of
  the range.
- `DensityEstimator` runs with its defaults, the same for all problems. They were chosen on other
  data (below).

Margins are paired: differences at the same test points, averaged over {seeds} seeds, each with
data, noise and weights of its own. The error is the larger of two: over test points (with that of
log Z), and over seeds. A margin of more than two errors counts as a win.
"""


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page and its picture; returns the path of the page."""
    draw(document, docs / "img" / "density-margins.png")
    page = docs / "density.md"
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    h = document["bandwidths"]
    seeds = len({cell["seed"] for cell in document["cells"]})
    yield INTRODUCTION.format(bandwidths=len(h), low=h[0], high=h[-1], seeds=seeds)
    yield "![margins over the baselines](img/density-margins.png)\n"
    yield "## Held-out numbers\n"
    yield "Means over seeds; in brackets the standard deviation from seed to seed.\n"
    yield markdown_table(
        ["problem", "method", "SM loss", "log-likelihood"], _numbers(document["cells"])
    )
    yield "## Margins\n"
    yield "Of DKEF, the default; positive is in its favour.\n"
    head = ["problem", "DKEF", "measure", "margin", "error", "seeds won", ""]
    yield markdown_table(head, _margins(document["verdicts"]))
    yield from _copies(document["cells"])
    yield "## What the defaults were chosen on\n"
    yield document["tuned"] + "\n"
    yield "## How to rerun\n"
    yield f"```bash\n{document['command']}\n```\n"
    yield _provenance(document)


def _numbers(cells: list[dict[str, Any]]) -> Iterable[list[str]]:
    for problem in dict.fromkeys(cell["problem"] for cell in cells):
        mine = [cell for cell in cells if cell["problem"] == problem]
        for method in mine[0]["methods"]:
            rows = [cell["methods"][method] for cell in mine]
            yield [problem, method, *(_spread([r[k] for r in rows]) for k in MEASURES)]
        if "truth" in mine[0]:
            rows = [cell["truth"] for cell in mine]
            yield [problem, "*the truth*", *(_spread([r[k] for r in rows]) for k in MEASURES)]


MEASURES = {"loss": "SM loss", "log_density": "log-likelihood"}


def _margins(verdicts: list[dict[str, Any]]) -> Iterable[list[str]]:
    for row in verdicts:
        error = max(row["error_over_points"], row["error_over_seeds"])
        outcome = (
            "win" if row["won"] else "**loss**" if row["margin"] < -2 * error else "**no win**"
        )
        margin = f"{row['margin']:+.3f}" if abs(row["margin"]) < 1 else f"{row['margin']:+.2f}"
        won = f"{row['seeds_won']} of {row['seeds']}"
        measure = MEASURES[row["measure"]]
        yield [row["problem"], row["pair"], measure, margin, f"{error:.3f}", won, outcome]


def _copies(cells: list[dict[str, Any]]) -> Iterable[str]:
    """The effect of repeated rows on the likelihood."""
    found = [cell["copies"] for cell in cells if "copies" in cell]
    if not found:
        return
    share, copied, new = (sum(f[k] for f in found) / len(found) for k in ("share", "copied", "new"))
    error = sum(f["new_error"] ** 2 for f in found) ** 0.5 / len(found)
    yield (
        f"Where rows repeat, {100 * share:.0f} % of the test rows are training rows too, up to "
        "noise.\nThere a narrow kernel on every training row is hard to beat: DKEF's gain in "
        f"log-likelihood over\nKDE is {copied:+.2f} at such rows, and {new:+.2f} (error "
        f"{error:.2f}) at rows that are new.\n"
    )


def _spread(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.2f} ({deviation:.2f})"


def _provenance(document: dict[str, Any]) -> str:
    seconds = [cell["methods"]["DKEF"]["cpu_seconds"] for cell in document["cells"]]
    return (
        f"{made_with(document)}. One fit of DKEF took {min(seconds):.0f} to {max(seconds):.0f} "
        "seconds of one core.\n"
    )


def draw(document: dict[str, Any], path: Path) -> None:
    """Margins of DKEF over the baselines, with bars of two standard errors."""
    rows = document["verdicts"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    figure, grid = pyplot().subplots(
        2, len(problems), figsize=(3.1 * len(problems), 4.0), squeeze=False, layout="constrained"
    )
    for line, measure in zip(grid, MEASURES):
        for axes, problem in zip(line, problems):
            mine = [r for r in rows if (r["problem"], r["measure"]) == (problem, measure)]
            _panel(axes, mine, pairs, first=problem == problems[0])
            if measure == "loss":
                axes.set_title(problem, fontsize=9)
            axes.set_xlabel(f"gain in {MEASURES[measure]}", fontsize=8.5)
    save(figure, path, dpi=130)


def _panel(axes: Any, rows: list[dict[str, Any]], pairs: list[str], first: bool) -> None:
    for row in rows:
        error = max(row["error_over_points"], row["error_over_seeds"])
        colour = "#2e8b57" if row["won"] else "#b03a2e"
        y = -pairs.index(row["pair"])
        axes.errorbar(row["margin"], y, xerr=2 * error, fmt="o", color=colour, capsize=3)
    axes.axvline(0.0, color="0.5", linewidth=0.8)
    labels = [pair.replace(", bandwidth", ",\nbandwidth") for pair in pairs] if first else []
    axes.set_yticks([-i for i in range(len(pairs))], labels or [""] * len(pairs), fontsize=8)
    axes.set_ylim(-len(pairs) + 0.5, 0.5)
    axes.tick_params(axis="x", labelsize=8)

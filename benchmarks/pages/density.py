"""The page docs/density.md and its picture, from the numbers of `benchmarks.density`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with, pyplot, save

METHODS = ("ours", "ours, no flows", "KDE", "mixture", "NSF", "MAF")

INTRODUCTION = """# How good is DensityEstimator?

`DensityEstimator` with its defaults (*ours*), and without the extra `flows` (*ours, no flows*),
against what one would pick instead: scikit-learn's `KernelDensity` with a cross-validated
bandwidth, its `GaussianMixture` with one to ten full covariances by BIC, and zuko's NSF and MAF
with their defaults, by maximum likelihood with early stopping. All of them get the same
standardised rows, 70 % of a table, and are evaluated at the same other 30 %.

- Tables that decisions were made on, with seeds from 100: {nine}.
- Tables that no decision has seen: {others}.
- A full run has nineteen tables and seeds 0 to 4; these numbers are of {count} tables and the
  seeds {seeds}. Other seeds are those of a run after changes that were made for that table, when
  its first seeds had been seen.
- Rounded columns get uniform noise over their rounding, the same for all methods. Without it a
  likelihood measures how narrow the peaks on the rounded values are.
- Margins are paired: differences in log-likelihood at the same rows, averaged over seeds.
  The error is the larger of two, over rows and over seeds. *Better* and *worse* are margins of
  more than one error.
- The loss is that of score matching, exact for smooth densities, in the whitened space. Where a
  flow takes part, whose score may jump, it is computed from differences over 0.05 to either side.
- AUC: how well a random forest tells samples from test rows, 0.5 being not at all; the mean of
  twelve draws of samples where there are at most 200 test rows. The best of the others counts as
  0.5 where it is below.
- Seconds are those of one core, for one fit.
"""

BASES = """## How it gets there

Five families of estimates are candidates: Gaussian, Student-t, kernels, Gaussian mixtures (full,
shrunk, tied and diagonal covariances, with more components until the likelihood falls) and flows.
They are fitted without the points of a fold and evaluated there. There are five folds, three in
tables of more than 3,000 rows or 11,000 entries, and above 10,000 rows a single split. Not every
candidate sees every fold:

- In tables of up to 10,000 entries all candidates but flows see all folds. In larger ones they see
  the first, and those with a weight above 0.005 in its mixture see the others.
- Flows, which need 50 rows, see the first fold, and the others if they raise the likelihood of the
  mixture by 0.1 there.

The weights of the mixture maximise the likelihood of the points that each fit has not seen
(stacking, Smyth and Wolpert 1999). Parts with a weight of less than 0.01 are dropped, flows are
averaged over the folds, and the rest is fitted once more to all points. One imagined point each
supports a normal and a heavy-tailed part. Both therefore stay in tables of up to about 100 rows,
which bounds what a row far from all others can cost.

In tables of 250 rows or more score matching then learns a tilt of that base, which is dropped where
the held-out likelihood does not rise by more than two errors.
"""


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page and its picture; returns the path of the page."""
    draw(document["summary"], docs / "img" / "density-margins.png")
    page = docs / "density.md"
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    cells = document["cells"]
    yield INTRODUCTION.format(**_about(document))
    yield "![margins over the best of the others](img/density-margins.png)\n"
    yield "## Margins in log-likelihood over the best of the others\n"
    head = ["table", "estimator", "best of the others", "margin", "error", "", "AUC", "best AUC"]
    yield markdown_table([*head, "seconds"], [_margin(row) for row in document["summary"]])
    yield from _counts(document)
    for key, title in TITLES.items():
        yield f"## {title}\n"
        yield markdown_table(["table", "rows, columns", *METHODS], _numbers(cells, key))
    yield from _tilts(cells)
    yield BASES
    yield "## How to rerun\n"
    yield f"```bash\n{document['command']}\n```\n"
    yield f"{made_with(document)}; {document['device']}.\n"
    yield from _places(cells)


def _places(cells: list[dict[str, Any]]) -> Iterator[str]:
    """Which tables were measured where, if not all in one place."""
    tables: dict[str, list[str]] = {}
    for cell in cells:
        names = tables.setdefault(cell.get("where", "unknown"), [])
        names += [cell["table"]] if cell["table"] not in names else []
    if len(tables) > 1:
        yield "Tables were measured in several places:\n"
        yield "\n".join(f"- {place}: {', '.join(names)}" for place, names in tables.items()) + "\n"


TITLES = {
    "log_density": "Log-likelihood",
    "loss": "Score-matching loss",
    "auc": "AUC of a classifier of samples",
    "seconds": "Seconds",
}


def _about(document: dict[str, Any]) -> dict[str, str]:
    """Names of the tables and seeds, for the introduction."""
    names = list(dict.fromkeys(cell["table"] for cell in document["cells"]))
    others = [name for name in names if name not in document["nine"]]
    return {
        "nine": ", ".join(document["nine"]),
        "others": ", ".join(others) or "none in this run",
        "count": str(len(names)),
        "seeds": _seeds(document["cells"]),
    }


def _seeds(cells: list[dict[str, Any]]) -> str:
    """The seeds of most tables, and those of tables that have others."""
    tables: dict[str, str] = {}
    for name in dict.fromkeys(cell["table"] for cell in cells):
        seeds = sorted(cell["seed"] for cell in cells if cell["table"] == name)
        tables[name] = ", ".join(map(str, seeds))
    usual = Counter(tables.values()).most_common(1)[0][0]
    others = [f"{name}: {seeds}" for name, seeds in tables.items() if seeds != usual]
    return f"{usual} ({'; '.join(others)})" if others else usual


def _margin(row: dict[str, Any]) -> list[str]:
    words = {"better": "better", "equal": "equal", "worse": "**worse**"}
    return [
        row["table"],
        row["method"],
        row["best"],
        f"{row['margin']:+.3f}",
        f"{row['error']:.3f}",
        words[row["verdict"]],
        f"{row['auc']:.2f}",
        f"{row['best_auc']:.2f}",
        f"{row['seconds']:.1f}",
    ]


def _counts(document: dict[str, Any]) -> Iterable[str]:
    """How often each verdict occurs."""
    for title, inside in (("The nine tables", True), ("The others", False)):
        rows = [r for r in document["summary"] if (r["table"] in document["nine"]) == inside]
        for method in dict.fromkeys(row["method"] for row in rows):
            mine = [row["verdict"] for row in rows if row["method"] == method]
            counts = ", ".join(f"{mine.count(v)} {v}" for v in ("better", "equal", "worse"))
            yield f"{title}, *{method}*: {counts}.\n"


def _numbers(cells: Sequence[dict[str, Any]], key: str) -> Iterable[list[str]]:
    for table in dict.fromkeys(cell["table"] for cell in cells):
        mine = [cell for cell in cells if cell["table"] == table]
        points = mine[0]["points"]
        yield [
            table,
            f"{points['train']}, {points['columns']}",
            *(_mean(mine, method, key) for method in METHODS),
        ]


def _mean(cells: Sequence[dict[str, Any]], method: str, key: str) -> str:
    """The mean over seeds, with the standard deviation from seed to seed."""
    rows = [cell["methods"].get(method, {}) for cell in cells]
    values = [row[key] for row in rows if key in row]
    if not values:
        return ""
    mean = sum(values) / len(values)
    if len(values) < 2 or key == "seconds":
        return f"{mean:.2f}"
    deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    failed = f", {len(rows) - len(values)} failed" if len(values) < len(rows) else ""
    return f"{mean:.2f} ({deviation:.2f}{failed})"


def _tilts(cells: Sequence[dict[str, Any]]) -> Iterable[str]:
    """How often a tilt was kept."""
    rows = [(cell["table"], cell["methods"].get("ours", {})) for cell in cells]
    rows = [(table, row) for table, row in rows if "tilt_size" in row]
    kept = [table for table, row in rows if row["tilt_size"] > 0]
    names = ", ".join(f"{table} ({kept.count(table)})" for table in dict.fromkeys(kept))
    yield f"A tilt was kept in {len(kept)} of {len(rows)} fits" + (
        f": {names}.\n" if kept else ".\n"
    )


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Margins over the best of the others, with bars of one error."""
    tables = list(dict.fromkeys(row["table"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, grid = pyplot().subplots(
        1, len(methods), figsize=(4.6 * len(methods), 0.6 + 0.27 * len(tables)), squeeze=False
    )
    for axes, method in zip(grid[0], methods):
        for row in (row for row in rows if row["method"] == method):
            colour = {"better": "#2e8b57", "equal": "0.4", "worse": "#b03a2e"}[row["verdict"]]
            y = -tables.index(row["table"])
            axes.errorbar(row["margin"], y, xerr=row["error"], fmt="o", color=colour, capsize=3)
        axes.axvline(0.0, color="0.5", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_title(f"{method}: gain in log-likelihood", fontsize=9)
        labels = tables if method == methods[0] else [""] * len(tables)
        axes.set_yticks([-i for i in range(len(tables))], labels, fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
    figure.tight_layout()
    save(figure, path, dpi=130)

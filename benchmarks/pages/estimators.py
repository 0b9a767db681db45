"""The page docs/estimators.md, from the numbers of `benchmarks.estimators`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with, pyplot, save
from scorematching.plot.canvas import shared_legend
from scorematching.plot.palette import style

Row = dict[str, Any]

INTRO = """\
# Score estimators

Estimates of a score, `grad log p`, from samples alone. The kernel estimators exist twice: as
functions on tensors, for many sets of samples at once (as implicit models need), and as
scikit-learn estimators.

```python
import torch

from scorematching.estimators import SpectralScoreEstimator, SteinScoreEstimator
from scorematching.kernels import fit_spectral

g = torch.Generator().manual_seed(0)
X, X_new = torch.randn(2, 100, 8, generator=g).numpy()
samples, x = torch.randn(16, 100, 8, generator=g), torch.randn(16, 5, 8, generator=g)

SpectralScoreEstimator().fit(X).grad_log_density(X_new)  # arrays (N, D)
fitted = fit_spectral(samples)  # 16 sets of samples at once
fitted.at_samples()  # scores at the samples
fitted.score(x)  # scores at other points
```

`score(X)` is minus the exact score-matching loss, so larger is better, and bandwidths can be chosen
without knowing the truth:

```python
from sklearn.model_selection import GridSearchCV

GridSearchCV(SteinScoreEstimator(), {"eta": [1e-3, 1e-2, 0.1]}, cv=3).fit(X)
```

## Which one

{choice}
"""

CHOICE = [
    ["`SteinScoreEstimator`", "ridge regression on Stein's identity", "N^3", "N^2", "no"],
    ["`SpectralScoreEstimator`", "eigenfunctions of the kernel", "N^3", "N D", "no"],
    [
        "`KernelExpFamilyEstimator`",
        "score matching in the space of a kernel",
        "(N D)^3; (m D)^3 with m inducing points; N^2 D a step by the nu-method",
        "N D",
        "up to a constant",
    ],
    ["`SlicedScoreEstimator`", "a network trained by SSM-VR", "training", "one pass", "no"],
    ["KDE, the baseline", "a normal window on every point", "a search", "N D", "yes"],
]

ADVICE = """\
- **The bandwidth and the penalty matter more than the method.** The median distance and the
  defaults are only a start; compare full and broken lines of one colour below. Stein with its usual
  ridge of 0.001 is worse than a score of zero for 100 points in eight dimensions, and among the
  best when tuned. A search with `GridSearchCV` takes seconds for a few hundred points.
- **A few hundred points**: `KernelExpFamilyEstimator` or `SteinScoreEstimator`, tuned; without a
  search, `KernelExpFamilyEstimator`. A network overfits there.
- **A thousand points and more**: `SlicedScoreEstimator`. It has caught up with the tuned kernels at
  N = 1000, its error falls faster, and its cost per point does not grow with N.
- **Inside a training loop**, on B small sets of samples at once: `fit_stein` and `fit_spectral`, in
  one batched call on the device of the samples. Neither needs training; both get worse quickly as
  the dimension grows.
- **A log-density**, up to a constant: `KernelExpFamilyEstimator.score_samples`.
- **Far from all samples** Stein and spectral scores fall to zero, and that of a kernel exponential
  family to the score of its base. The funnel, whose width changes a hundredfold, is hard for every
  kernel with one bandwidth.
- Coordinates of different units: standardise first, and divide the scores by the standard
  deviations; `SlicedScoreEstimator` does so itself. A `Pipeline` has no `grad_log_density`.

Conventions. Stein's out-of-sample score is that of the samples with the point appended. The number
of eigenpairs is chosen at every fit and for each set of a batch: the largest ones, up to 99 % of
the trace. `average_mass=True` takes one number for all sets, and `include_diagonal=True` counts
zero distances in the median, both as in the code released with Song et al. (2019). A median
bandwidth carries no gradient.

The defaults of `KernelExpFamilyEstimator` (penalty, scale of the base, steps of the nu-method) and
the stopping rule of `SlicedScoreEstimator` were chosen on toy distributions like those below, with
the true score known and with two of the seeds used below: those rows are somewhat optimistic.
"""


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page and its pictures; returns the path of the page."""
    rows = document["rows"]
    _plot_errors(rows, docs / "img" / "estimators-error.png")
    _plot_times(rows, docs / "img" / "estimators-time.png")
    page = docs / "estimators.md"
    page.write_text(render(document))
    return page


def render(document: dict[str, Any]) -> str:
    """The text of the page."""
    rows = document["rows"]
    head = ["estimator", "how", "cost of a fit", "of a point", "log-density"]
    parts = [
        INTRO.replace("{choice}", markdown_table(head, CHOICE, align_right=False)),
        ADVICE,
        "## Numbers\n",
        _provenance(document),
        _summary(rows),
        *_tables(rows),
        "![Fisher divergence against N](img/estimators-error.png)\n",
        _times(rows),
        "![Error against time](img/estimators-time.png)\n",
    ]
    return "\n".join(parts)


def _provenance(document: dict[str, Any]) -> str:
    return (
        f"`{document['command']}`, {document['device']}, {document['threads']} thread(s), "
        f"{made_with(document)}; seeds {', '.join(map(str, document['seeds']))}.\n\n"
        "Fisher divergence `E 0.5 |s - s_d|^2` to the true score at "
        f"{document['queries']} new points, in percent of that of a score of zero: 0 is perfect, "
        "100 is no better than zero. Mean over seeds and, in brackets, its standard error in units "
        "of the last digit; the best in bold. *Tuned*: bandwidth (half to four times the median) "
        "and penalty by the held-out score-matching loss on the first "
        f"{document['tuning_points']} points, three folds, for KEF on ten inducing points; all "
        "else is the default. KDE has the bandwidth of largest held-out likelihood.\n"
    )


def _summary(rows: list[Row]) -> str:
    """Geometric means over distributions and dimensions, best first at the largest N."""
    nums, names = sorted({row["num"] for row in rows}), _values(rows, "estimator")
    cells = sorted({(row["law"], row["dim"]) for row in rows})

    def overall(name: str, num: int) -> float:
        where = {"estimator": name, "num": num}
        logs = [math.log(_mean(rows, "relative", law=a, dim=d, **where)[0]) for a, d in cells]
        return 100 * math.exp(sum(logs) / len(logs))

    names.sort(key=lambda name: overall(name, nums[-1]))
    lines = [[name, *(f"{overall(name, num):.1f}" for num in nums)] for name in names]
    head = ["estimator", *(f"N={num}" for num in nums)]
    caption = "All distributions and dimensions together, geometric means:\n\n"
    return caption + markdown_table(head, lines)


def _tables(rows: list[Row]) -> Iterable[str]:
    """A table for every distribution."""
    names = _values(rows, "estimator")
    for law in _values(rows, "law"):
        mine = [row for row in rows if row["law"] == law]
        columns = sorted({(row["dim"], row["num"]) for row in mine})
        found = {
            column: {
                name: _mean(mine, "relative", estimator=name, dim=column[0], num=column[1])
                for name in names
            }
            for column in columns
        }
        best = {column: min(mean for mean, _ in means.values()) for column, means in found.items()}
        lines = [[name, *(_cell(*found[c][name], best[c]) for c in columns)] for name in names]
        head = ["estimator", *(f"D={dim}, N={num}" for dim, num in columns)]
        yield f"**{law.capitalize()}**\n\n{markdown_table(head, lines)}"


def _cell(mean: float, error: float, best: float) -> str:
    """``12.3(4)`` percent."""
    mean, error = 100 * mean, 100 * error
    digits = 1 if mean < 100 else 0
    unit = 10**digits
    text = f"{mean:.{digits}f}({math.ceil(error * unit)})" if mean < 1000 else "> 1000"
    return f"**{text}**" if mean <= 100 * best else text


def _times(rows: list[Row]) -> str:
    largest = max(row["num"] for row in rows)
    dims = sorted({row["dim"] for row in rows})
    lines = []
    for name in _values(rows, "estimator"):
        cells = [name]
        for dim in dims:
            mine = [r for r in rows if (r["estimator"], r["dim"], r["num"]) == (name, dim, largest)]
            cells += [f"{_median(mine, key):.2g}" for key in ("fit_seconds", "query_seconds")]
        lines.append(cells)
    head = [f"{what}, D={dim}" for dim in dims for what in ("fit", "query")]
    return (
        f"Seconds to fit {largest} points, tuning included, and to evaluate 1000 others; median "
        f"over distributions and seeds:\n\n{markdown_table(['estimator', *head], lines)}"
    )


def _plot_errors(rows: list[Row], path: Path) -> None:
    """One panel for every distribution and dimension: error against N."""
    laws, dims = _values(rows, "law"), sorted({row["dim"] for row in rows})
    plt = pyplot()
    shape = (3.1 * len(laws), 2.5 * len(dims) + 0.7)
    figure, grid = plt.subplots(
        len(dims), len(laws), figsize=shape, squeeze=False, sharex=True, layout="constrained"
    )
    for i, dim in enumerate(dims):
        for j, law in enumerate(laws):
            axes = grid[i][j]
            _panel(axes, [r for r in rows if (r["law"], r["dim"]) == (law, dim)])
            axes.set_title(f"{law}, D = {dim}", fontsize=9)
            if j == 0:
                axes.set_ylabel("relative Fisher div.", fontsize=8)
            if i == len(dims) - 1:
                axes.set_xlabel("N", fontsize=8)
    shared_legend(figure, columns=9)
    save(figure, path, dpi=140)


def _panel(axes: Any, rows: list[Row]) -> None:
    nums = sorted({row["num"] for row in rows})
    for name in _values(rows, "estimator"):
        pairs = [_mean(rows, "relative", estimator=name, num=num) for num in nums]
        mean, error = [p[0] for p in pairs], [p[1] for p in pairs]
        axes.errorbar(nums, mean, error, label=name, **style(name).line())
    axes.axhline(1.0, color="#222222", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xticks=nums, ylim=(3e-3, 3.0))
    axes.set_xticklabels([str(num) for num in nums], fontsize=8)
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.5)


def _plot_times(rows: list[Row], path: Path) -> None:
    """Error against time to fit, at the largest N."""
    laws, dims = _values(rows, "law"), sorted({row["dim"] for row in rows})
    largest = max(row["num"] for row in rows)
    plt = pyplot()
    shape = (3.1 * len(dims), 3.6)
    figure, grid = plt.subplots(
        1, len(dims), figsize=shape, squeeze=False, sharey=True, layout="constrained"
    )
    for axes, dim in zip(grid[0], dims):
        _time_panel(axes, [r for r in rows if (r["dim"], r["num"]) == (dim, largest)], laws)
        axes.set(xscale="log", yscale="log", xlabel=f"seconds to fit N = {largest}")
        axes.set_xlim(0.05, 50)
        axes.minorticks_off()
        axes.set_title(f"D = {dim}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.5)
    label = "relative Fisher div.,\ngeometric mean of distributions"
    grid[0][0].set_ylabel(label, fontsize=8)
    shared_legend(figure)
    save(figure, path, dpi=140)


def _time_panel(axes: Any, rows: list[Row], laws: list[str]) -> None:
    """A point for each estimator; tuned ones are hollow."""
    for name in _values(rows, "estimator"):
        mine = [row for row in rows if row["estimator"] == name]
        look = style(name)
        errors = [_mean(mine, "relative", law=law)[0] for law in laws]
        height = math.exp(sum(map(math.log, errors)) / len(errors))
        x = _median(mine, "fit_seconds")
        axes.plot(
            [x],
            [height],
            look.marker,
            label=name,
            markersize=7,
            color=look.color,
            markerfacecolor=look.face,
        )


def _values(rows: list[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _mean(rows: list[Row], key: str, **where: Any) -> tuple[float, float]:
    """Mean and standard error over the rows that match."""
    found = [row[key] for row in rows if all(row[k] == v for k, v in where.items())]
    mean = sum(found) / len(found)
    if len(found) < 2:
        return mean, math.nan
    variance = sum((value - mean) ** 2 for value in found) / (len(found) - 1)
    return mean, math.sqrt(variance / len(found))


def _median(rows: list[Row], key: str) -> float:
    values: list[float] = sorted(row[key] for row in rows)
    return values[len(values) // 2]

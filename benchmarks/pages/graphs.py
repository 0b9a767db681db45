"""The page docs/graphical-models.md and its picture, from the numbers of `benchmarks.graphs`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with, pyplot, save
from scorematching.plot.canvas import legend_below
from scorematching.plot.palette import style

OURS, LASSO = "GraphicalModel", "graphical lasso"
"""The two methods, as pictures name them."""

INTRODUCTION = """# Graphical models

`sm.inference.GraphicalModel` finds which variables depend on each other given all others. The
log-density is, up to a constant that is never needed,

    log p(x) = -x^a' K x^a / (2 a) + eta' x^b / b

and i and j are joined by an edge where `K_ij` is not zero.

| kind | a | b | points | model |
| --- | --- | --- | --- | --- |
| `gaussian` | 1 | 1 | all | normal, K its precision |
| `truncated` | 1 | 1 | x >= 0 | normal on the positive orthant |
| `exponential` | 1/2 | 1/2 | x > 0 | exponential square-root graphical model |
| `gamma` | 1/2 | 0 | x > 0 | gamma graphical model (`eta' log x`) |

```python
import matplotlib.pyplot as plt
from sklearn.datasets import load_wine

import scorematching as sm

X = load_wine().data  # 178 wines, 13 measurements, all of them positive
model = sm.inference.GraphicalModel(kind="truncated").fit(X)
model.graph_  # (D, D), booleans
model.precision_  # K
axes = plt.subplots()[1]
model.path_.plot(axes)  # entries of K against the penalty, on axes of matplotlib
```

## What is computed

The score is linear in K and eta, so the score-matching loss is quadratic: one quadratic form for
each variable. On the positive orthant the terms of variable j are weighted by `h(x_j)`, which
vanishes at the boundary (Yu, Drton and Shojaie, 2019); `weight` and `cut` choose it. To the loss is
added `penalty * sum_{i != j} |K_ij|`, over symmetric K, with the diagonal of the quadratic forms
multiplied by a factor between 1 and 2, which gives the problem a minimum where there are more
columns than points. A path of 50 penalties is followed by accelerated proximal steps with warm
starts and strong rules.

The edges of each solution are then estimated again without the penalty and the factor, and the
models are compared by extended BIC (`selection="ebic"`) or by held-out loss (`selection="cv"`).
Extended BIC assumes the scale of a log-likelihood. That of the loss differs by a factor J / H, the
variance of its derivative over its curvature, which depends on the model and the weight. The loss
is divided by the mean of this factor over all pairs; otherwise too many edges would be chosen.

## When not to trust it

- K need not be positive definite. For `gaussian` data with few points that can be a nuisance; for
  truncated data it is right, since many valid K are not.
- With few points many edges are missed, and of those that are chosen some are wrong; on truncated
  data with as many columns as points it can be half of them (columns *recall* and *wrong* below).
- `gamma` and `exponential` have the weight `x^2`; with the two others, points near zero cause wrong
  edges and estimates `eta_` that one point can decide.
- A graph describes dependence within the family. Check the fit of a Gaussian model with
  `sm.evaluation.ksd_test`; for the positive kinds no such test is offered here.
"""


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page and its picture; returns the path of the page."""
    draw(document, docs / "img" / "graphical-models.png")
    page = docs / "graphical-models.md"
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    rows = document["rows"]
    repeats = len({row["repeat"] for row in rows})
    yield INTRODUCTION
    yield "## Recovery of random graphs\n"
    yield (
        f"Erdos-Renyi graphs with four neighbours per node on average; medians over {repeats} data "
        "sets.\nAUC is that of ranking pairs by the largest penalty at which they are an edge. "
        "Recall and share of\nwrong edges are those of the graph that extended BIC chose. Seconds "
        "are of one core, for the whole\npath: 50 penalties here, 25 for scikit-learn's graphical "
        "lasso.\n"
    )
    yield "![recovery of graphs](img/graphical-models.png)\n"
    head = ["data", "D", "N", "AUC", "lasso's AUC", "recall", "wrong", "seconds", "lasso's seconds"]
    yield markdown_table(head, _recovery(document))
    yield "## What a graphical lasso cannot do\n"
    yield (
        "Truncated data are drawn from exp(-x'Kx/2) on the positive orthant, with ones on the "
        "diagonal of K\nand entries from 0.5 to 2 for edges: mutual exclusion. K has negative "
        "eigenvalues, so it is the\nprecision of no normal distribution. The ranking of edges by a "
        "graphical lasso is about as good as\nours (table above). Its estimate of K is not, and "
        "more points do not help: the relative error\n(Frobenius norm) below is the least on its "
        "path. With weaker interactions, where K is positive\ndefinite, the two estimates differ "
        "little.\n"
    )
    head = ["D", "N", "least eigenvalue of K", "error of K", "lasso's error of K"]
    yield markdown_table(head, _errors(document))
    yield "## How to rerun\n"
    yield f"```bash\n{document['command']}\n```\n"
    yield f"{made_with(document)}.\n"


def median(rows: list[dict[str, Any]], key: str) -> float:
    """The median over data sets."""
    return float(statistics.median(row[key] for row in rows))


def _of(document: dict[str, Any], kind: str, dim: int, n: int) -> list[dict[str, Any]]:
    wanted = (kind, dim, n)
    return [row for row in document["rows"] if (row["kind"], row["dim"], row["n"]) == wanted]


def _recovery(document: dict[str, Any]) -> Iterable[list[str]]:
    for kind in ("gaussian", "truncated"):
        for dim, n in document["sizes"]:
            mine = _of(document, kind, dim, n)
            numbers = [f"{median(mine, key):.4f}" for key in ("auc", "auc_lasso")]
            numbers += [f"{median(mine, key):.2f}" for key in ("recall", "false_share")]
            numbers += [f"{median(mine, key):.1f}" for key in ("seconds", "seconds_lasso")]
            yield [kind, str(dim), str(n), *numbers]


def _errors(document: dict[str, Any]) -> Iterable[list[str]]:
    for dim, n in [*document["growth"], *document["sizes"]]:
        mine = _of(document, "truncated", dim, n)
        numbers = [f"{median(mine, k):.2f}" for k in ("least_eigenvalue", "error", "error_lasso")]
        yield [str(dim), str(n), *numbers]


def draw(document: dict[str, Any], path: Path) -> None:
    """AUC of both methods, the error of K against the number of points, and a path."""
    figure, (left, middle, right) = pyplot().subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    _draw_auc(left, document)
    points = [n for _, n in document["growth"]]
    cells = [_of(document, "truncated", dim, n) for dim, n in document["growth"]]
    for key, label in (("error", OURS), ("error_lasso", LASSO)):
        middle.plot(
            points, [median(mine, key) for mine in cells], label=label, **style(label).line()
        )
    middle.set(xscale="log", yscale="log", xlabel="points", ylabel="relative error of K")
    middle.set_xticks(points, [str(n) for n in points], minor=False)
    middle.minorticks_off()
    middle.set_title("truncated data", fontsize=10)
    legend_below(middle)
    _draw_path(right, document["path"])
    save(figure, path, dpi=130)


def _draw_auc(axes: Any, document: dict[str, Any]) -> None:
    labels: list[str] = []
    for kind in ("gaussian", "truncated"):
        for dim, n in document["sizes"]:
            mine, y = _of(document, kind, dim, n), -len(labels)
            for key, name, up in (("auc", OURS, 0.12), ("auc_lasso", LASSO, -0.12)):
                look, values = style(name), [row[key] for row in mine]
                heights = [y + up] * len(mine)
                axes.plot(values, heights, look.marker, ms=3, color=look.color)
            labels.append(f"{kind}\nD={dim}, N={n}")
    axes.set_yticks([-i for i in range(len(labels))], labels, fontsize=7)
    axes.set_xlabel("AUC (circles: GraphicalModel, squares: graphical lasso)", fontsize=8)


def _draw_path(axes: Any, path: dict[str, Any]) -> None:
    for entries, true in sorted(zip(path["entries"], path["true"]), key=lambda pair: pair[1]):
        axes.plot(path["lambdas"], entries, color=style(OURS).color if true else "0.75", lw=0.8)
    axes.axvline(path["lambdas"][path["chosen"]], color="0.3", ls="--", lw=0.8)
    axes.set(xscale="log", xlabel="penalty", ylabel="entries of K (standardised)")
    axes.invert_xaxis()
    axes.set_title("a path; edges of the true graph in green", fontsize=10)

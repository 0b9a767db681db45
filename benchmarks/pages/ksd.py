"""The page docs/goodness-of-fit.md and its picture, from the numbers of `benchmarks.ksd`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness.tables import markdown_table
from benchmarks.pages.parts import made_with, pyplot, save
from scorematching.plot.canvas import legend_below

INTRODUCTION = """# Does the model fit?

`sm.evaluation.ksd_test` asks whether points come from a model. It needs the model's score alone,
so it works for unnormalised densities and score networks. Its statistic is the mean over pairs of
points of the Stein kernel

    u(x, y) = s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + tr grad_x grad_y k

with s the score and k a kernel: the squared kernel Stein discrepancy. Its expectation is zero if
the points come from the model, and positive otherwise (Liu, Lee and Jordan, 2016; Chwialkowski,
Strathmann and Gretton, 2016).

```python
import torch

from scorematching.distributions import Gaussian
from scorematching.evaluation import Fitted, Fixed, Split, ksd_test

g = torch.Generator().manual_seed(0)
x = torch.randn(200, 2, generator=g)
model = Gaussian(torch.zeros(2), torch.eye(2))


def fit(x):
    return Gaussian(x.mean(0), x.T.cov())


def sample(model, num, generator):
    return model.sample(num, generator)


ksd_test(Fixed(model), x, generator=g)  # a model that does not depend on x
ksd_test(Fitted(fit, sample), x, generator=g)  # a model fitted to x itself
ksd_test(Split(fit), x, generator=g)  # fitted to most of x, tested on the rest
```

A model is a `Field`, a `Distribution`, an estimator, the result of a fit, a function that returns
log-densities `(N,)` or scores `(N, D)`, or a tensor of scores. The result prints as
`squared KSD 0.012, p = 0.03 (wild bootstrap, 499 draws, n=200)`. The kernel matrix is computed in
blocks and never held as a whole.

## Which of the three

What the parameters were fitted to decides which null distribution is right. So there is no default,
and a bare model is not accepted.

- **`Fixed`** multiplies the terms of the statistic by random signs (wild bootstrap). This is right
  if the model does not depend on the points: a theory, the target of a sampler, a model fitted to
  other data.
- **`Fitted`** draws data sets from the fitted model and fits each of them anew (parametric
  bootstrap). `fit` must be the whole procedure. It costs one fit per draw.
- **`Split`** fits once, to some of the points, and tests the others. Its hypothesis is that the
  fitted model *as it stands* is the distribution of the data. With half of the points tested, the
  estimation error of the parameters alone makes it reject a right family far too often (table
  below). The default tests a tenth of the points, which is closer to the right rate and has little
  power. Use it where fits are expensive and there are many points.

Do not use the wild bootstrap on the points that a model was fitted to. The fit makes the statistic
smaller, but not the randomly signed sums, so a wrong model can pass. `Fixed` refuses fitted
estimators, results of fits and kernel estimates of scores unless `held_out=True` states that the
points are new. It cannot see what a network was trained on.

For a Markov chain in its order, `flip_probability` below 0.5 gives neighbouring points the same
sign more often; one over the correlation time is a good value.
"""

BLIND = """## What it does not see

- **Separated modes.** The score of a mixture does not depend on the weights of modes that are far
  apart. Data from one of two modes pass as data from both if the modes are well separated (mode
  missing in the data, in the table).
- **Boundaries.** On the positive orthant, or another set with a boundary, the identity behind the
  test has a further term. Estimators of such densities are refused. Map the points to all of space
  and give the scores there: for positive x, `ksd_test(Fixed(x * score(x) + 1), x.log())`, since
  the density of log(x) has a factor x more.
- **Columns that determine each other**, and constant ones. The identity needs a density in all
  columns, so an estimator that has set some aside is refused; fit and test without them.

## From the same kernel

`sm.evaluation.stein_thin(x, score, m)` chooses the m points of a chain that represent the model
best (Riabiz et al., 2022). `sm.evaluation.control_variate(f, x, score)` estimates the expectation
of f over the model, with less variance than the plain mean if f is smooth (Oates, Girolami and
Chopin, 2017). Its standard error is nearly right on average, but intervals cover less than they
say: [measured](control-functionals.md).

`sm.evaluation.compare(a, b, X)` says which of two models has the smaller score-matching loss, by
paired differences at the same points. Where no model is exactly right, this is the better question.
A `DensityEstimator` with a spline flow is refused there, because its score jumps; compare
log-likelihoods, `score_samples(X)`.
"""


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page and its picture; returns the path of the page."""
    draw(document, docs / "img" / "goodness-of-fit.png")
    page = docs / "goodness-of-fit.md"
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    yield INTRODUCTION
    yield "## Measured\n"
    draws = document["draws"]
    yield (
        f"Data sets of {document['points']} points in two dimensions, tests at 5%, "
        f"{draws['wild']} draws of a wild and {draws['parametric']}\nof a parametric bootstrap. "
        "First, how often a *right* model is rejected. The fitted models are normal\ndistributions "
        "with the sample's mean and covariance. The range is that of 99% of binomial counts.\n"
    )
    head = ["test of a right model", "rejected", "rate", "range for 5%", ""]
    yield markdown_table(head, _levels(document["cells"]))
    yield "![rejection rates](img/goodness-of-fit.png)\n"
    yield "Second, how often a wrong model is rejected.\n"
    yield markdown_table(["deviation", "amount", "rate"], _powers(document["cells"]))
    yield BLIND
    yield "## How to rerun\n"
    yield f"```bash\n{document['command']}\n```\n"
    yield f"{made_with(document)}.\n"


def _levels(rows: list[dict[str, Any]]) -> Iterable[list[str]]:
    for row in rows:
        if row["group"] == "level":
            low, high = row["range"]
            share = f"{row['rejected']} of {row['datasets']}"
            rate = f"{100 * row['rate']:.1f}%"
            verdict = "right" if row["right"] else "**wrong**"
            yield [row["name"], share, rate, f"{low} to {high}", verdict]


def _powers(rows: list[dict[str, Any]]) -> Iterable[list[str]]:
    for row in rows:
        if row["group"] != "level":
            yield [row["name"], f"{row['amount']:g}", f"{100 * row['rate']:.0f}%"]


def draw(document: dict[str, Any], path: Path) -> None:
    """Distributions of p-values of right models, and rejection rates of wrong ones."""
    rows = document["cells"]
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(10, 4), layout="constrained")
    for row in rows:
        if row["group"] == "level":
            n = row["datasets"]
            left.step(row["p_values"], [(i + 1) / n for i in range(n)], label=row["name"], lw=1.2)
    left.plot([0, 1], [0, 1], color="0.5", lw=0.8, ls=":")
    left.set(xlabel="p-value", ylabel="share of data sets below", title="right models")
    names = dict.fromkeys(row["name"] for row in rows if row["group"] != "level")
    for name in names:
        mine = [row for row in rows if row["name"] == name]
        rates = [row["rate"] for row in mine]
        right.plot(range(len(mine)), rates, marker="o", ms=3, label=name)
        for i, row in enumerate(mine):
            right.annotate(f"{row['amount']:g}", (i, rates[i]), fontsize=6, va="bottom")
    right.axhline(0.05, color="0.5", lw=0.8, ls=":")
    right.set(xlabel="amount, as written", ylabel="rejected", title="wrong models", xticks=[])
    for axes in (left, right):
        legend_below(axes, columns=2)
    save(figure, path, dpi=130)

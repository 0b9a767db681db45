"""The page docs/memory.md, from the numbers of `benchmarks.memory`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.pages.parts import made_with

INTRODUCTION = """# Limits of memory

Evaluations and estimators take `max_memory=`, in bytes:

```python
import numpy as np

import scorematching as sm

X = np.random.default_rng(0).normal(size=(600, 2))
estimator = sm.SteinScoreEstimator().fit(X, max_memory=20_000_000)
score = estimator.grad_log_density(X, max_memory=2_000_000)
try:
    sm.SteinScoreEstimator().fit(X, max_memory=1_000_000)
except ValueError as error:
    print(error)
```

```text
ERROR
```

The limit is for what is allocated beside model and points; for methods that return an array, beside
that array; a fit includes what the fitted estimator keeps. What treats points by themselves is
evaluated some points at a time: the memory of the first few is measured, and as many are taken as
fit. What cannot be cut, such as the eigenvalues of an N x N matrix, is refused before anything is
allocated, with the number of bytes it takes. Results are those without a limit, up to rounding.

TABLE

A kernel without `bandwidth=` also needs three matrices of at most 2000 x 2000, for the median
distance.
With a limit every operation is counted, which makes small operations several
times slower; large ones cost the same.

"""

ERROR = (
    "max_memory must be at least 8640000 bytes, which 3 matrices of 600 x 600 take, got 1000000; "
    "use a larger limit, or take a random subset, or SlicedScoreEstimator, which is trained"
)

WAYS = {
    "`score_matching_loss`, `fisher_divergence`, `sliced_fisher_divergence`, `compare`, "
    "`log_likelihood`": "points at a time",
    "`grad_log_density`, `score_samples`, `score` of estimators": "points at a time",
    "`kernel_stein_discrepancy`, `ksd_test`, `stein_thin`": "rows of the kernel matrix at a time; "
    "signs of the bootstrap take one byte each",
    "`importance_log_z`, `ais`, `bidirectional`, `ais_log_z`": "densities of some chains at a "
    "time, with the random numbers of all",
    "`feature_moments`": "images at a time, beside the moments",
    "`frechet_distance`, `kernel_distance`": "refused if matrices do not fit",
    "`inference.fit`": "rows at a time, beside three times the gradients of all rows",
    "`fit` of `SteinScoreEstimator`, `SpectralScoreEstimator`": "three and four N x N matrices, "
    "or refused",
    "`fit` of `KernelExpFamilyEstimator`": "rows at a time beside two matrices (N D) x (N D), or "
    "six (m D) x (m D) for m inducing points; the nu-method needs none",
    "`fit` of `SlicedScoreEstimator`": "batches in parts, as by `accumulate` in training",
    "`fit` of `DensityEstimator` and `GraphicalModel`": "kernel densities some points "
    "at a time; refused where another step would exceed the limit",
}


def write(document: dict[str, Any], docs: Path) -> Path:
    """Write the page; returns its path."""
    page = docs / "memory.md"
    docs.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(sections(document)))
    return page


def sections(document: dict[str, Any]) -> Iterable[str]:
    """The parts of the page."""
    ways = ["| with `max_memory=` | how it stays below the limit |", "| --- | --- |"]
    ways += [f"| {names} | {way} |" for names, way in WAYS.items()]
    text = INTRODUCTION.replace("ERROR", ERROR).replace("TABLE", "\n".join(ways))
    yield text + sentence(document)
    yield "| function | without limit, MB | limit, MB | peak, MB | peak / limit |"
    yield "| --- | --: | --: | --: | --: |"
    yield from map(_row, document["rows"])
    yield "\nLimits with a star are the least that is accepted.\n"
    yield f"`{document['command']}` on {document['device']}; {made_with(document)}.\n"


def sentence(document: dict[str, Any]) -> str:
    """What was measured."""
    ratios = [row["peak"] / row["budget"] for row in document["rows"]]
    names = {row["name"] for row in document["rows"]}
    return (
        f"Measured by torch's profiler, which sees every allocation: {len(names)} functions at up\n"
        f"to {document['points']} points of {document['dim']} coordinates, with limits of a half "
        "and a quarter of what each takes without\n"
        f"one. The largest peak was {max(ratios):.2f} times the limit.\n"
    )


def _row(row: dict[str, Any]) -> str:
    star = "*" if row["refused"] else ""
    free, budget, peak = (row[name] / 1e6 for name in ("free", "budget", "peak"))
    ratio = row["peak"] / row["budget"]
    return f"| {row['name']} | {free:.2f} | {budget:.2f}{star} | {peak:.2f} | {ratio:.2f} |"

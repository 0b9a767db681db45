"""Recovery of Erdos-Renyi graphs by `GraphicalModel` and by scikit-learn's graphical lasso.

Gaussian data have a precision matrix with entries of either sign. Truncated data are drawn from
``exp(-x'Kx / 2)`` on the positive orthant, where edges stand for mutual exclusion: K has positive
entries and negative eigenvalues, so it is no precision matrix of any normal distribution.
"""

from __future__ import annotations

import math
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.covariance import graphical_lasso
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks.harness.command import Docs, Output, Smoke, command_line, run_command
from benchmarks.harness.jobs import Jobs, run_tasks
from benchmarks.harness.provenance import stamp
from benchmarks.pages import graphs as graphs_page
from benchmarks.pages.parts import publish
from scorematching.inference import GraphicalModel

SIZES = [(50, 200), (50, 1000), (200, 200), (200, 1000)]
"""Columns and points."""
GROWTH = [(20, n) for n in (500, 2000, 8000)]
"""Columns and points for the error of K as the number of points grows."""
DEGREE, PENALTIES, SWEEPS = 4, 25, 100

Array = NDArray[np.float64]


# Data.


def edges(dim: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """The upper triangle of an Erdos-Renyi graph with four neighbours per node on average."""
    return np.triu(rng.random((dim, dim)) < DEGREE / dim, 1)


def gaussian(dim: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points and the precision; entries of size 0.3 to 0.7, least eigenvalue 0.5."""
    sign = rng.choice([-1.0, 1.0], (dim, dim))
    upper = edges(dim, rng) * rng.uniform(0.3, 0.7, (dim, dim)) * sign
    K = upper + upper.T
    K += (0.5 - np.linalg.eigvalsh(K)[0]) * np.eye(dim)
    return rng.multivariate_normal(np.zeros(dim), np.linalg.inv(K), size=n, method="cholesky"), K


def truncated(dim: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points of a Gibbs sampler and K, with entries 0.5 to 2 and ones on the diagonal."""
    upper = edges(dim, rng) * rng.uniform(0.5, 2.0, (dim, dim))
    K = upper + upper.T + np.eye(dim)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    return gibbs(torch.as_tensor(K), n, SWEEPS, generator).numpy(), K


def gibbs(K: Tensor, n: int, sweeps: int, generator: torch.Generator) -> Tensor:
    """Draws from ``exp(-x'Kx / 2)`` on x > 0 by n independent chains, each step exact.

    Given the others, ``x_j`` is normal with mean ``m = -sum_{l != j} K_jl x_l / K_jj``, truncated
    to the positive numbers: ``m - sd ndtri(u ndtr(m / sd))`` with u uniform. For a mean thirty
    standard deviations below zero, where that underflows, it is exponential with rate
    ``-m / sd^2``, up to one in 900.
    """
    x = torch.rand(n, len(K), generator=generator, dtype=K.dtype)
    for _ in range(sweeps):
        for j in range(len(K)):
            sd = K[j, j] ** -0.5
            mean = x[:, j] - x @ K[j] / K[j, j]
            u = 1 - torch.rand(n, generator=generator, dtype=K.dtype)  # not zero
            tail = u * torch.special.erfc(-mean / sd / math.sqrt(2)) / 2  # ndtr has no digits here
            drawn = torch.where(
                mean > -30 * sd, mean - sd * torch.special.ndtri(tail), u.log() * sd**2 / mean
            )
            x[:, j] = drawn.clamp(min=1e-12)
    return x


DATA = {"gaussian": gaussian, "truncated": truncated}


# Methods.


def lasso_path(X: Array) -> tuple[Array, list[Array]]:
    """The graphical lasso on standardised columns: largest penalty of each edge, and precisions."""
    sd = X.std(0)
    S: Array = np.atleast_2d(np.corrcoef(X.T))
    largest = np.abs(S - np.eye(len(S))).max()
    ranks, found = np.zeros_like(S), []
    for alpha in np.geomspace(largest, 0.02 * largest, PENALTIES):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                _, K = graphical_lasso(S, alpha, max_iter=100)
        except FloatingPointError:  # it has no solution to offer for smaller penalties either
            break
        ranks = np.maximum(ranks, np.where(K != 0, alpha, 0.0))
        found.append(K / np.outer(sd, sd))
    return ranks, found


def error(found: Array, K: Array) -> float:
    """Relative error in the Frobenius norm."""
    return float(np.linalg.norm(found - K) / np.linalg.norm(K))


def run(kind: str, dim: int, n: int, repeat: int) -> dict[str, Any]:
    """One data set, both methods."""
    rng = np.random.default_rng([repeat, dim, n, list(DATA).index(kind)])
    X, K = DATA[kind](dim, n, rng)
    above = np.triu_indices(dim, 1)
    truth = K[above] != 0
    start = time.process_time()
    model = GraphicalModel(kind).fit(X)
    middle = time.process_time()
    ranks, precisions = lasso_path(X)
    end = time.process_time()
    chosen = model.graph_[above]
    return {
        "kind": kind,
        "dim": dim,
        "n": n,
        "repeat": repeat,
        "auc": roc_auc_score(truth, model.path_.entry_penalties()[above]),
        "auc_lasso": roc_auc_score(truth, ranks[above]),
        "error": error(model.precision_, K),
        "error_lasso": min(error(found, K) for found in precisions),
        "recall": float(chosen[truth].mean()),
        "false_share": float((chosen & ~truth).sum() / max(1, chosen.sum())),
        "least_eigenvalue": float(np.linalg.eigvalsh(K)[0]),
        "seconds": middle - start,
        "seconds_lasso": end - middle,
    }


def path_example() -> dict[str, Any]:
    """A small path, for the picture."""
    X, K = gaussian(15, 300, np.random.default_rng(0))
    path = GraphicalModel().fit(X).path_
    rows, columns = np.triu_indices(15, 1)
    return {
        "lambdas": path.lambdas.tolist(),
        "entries": path.precisions[:, rows, columns].round(4).T.tolist(),
        "true": (K[rows, columns] != 0).tolist(),
        "chosen": path.chosen,
    }


Repeats = Annotated[int, typer.Option(min=1, help="Data sets of every cell.")]


def measure(
    repeats: Repeats = 10,
    jobs: Jobs = 1,
    smoke: Smoke = False,
    out: Output = None,
    docs: Docs = None,
) -> Path:
    """Compare the recovery of graphs; write the numbers and docs/graphical-models.md."""
    command = command_line("python -m benchmarks.graphs", measure, {**locals(), "jobs": 1})
    sizes, growth = ([(20, 200)], [(10, 200)]) if smoke else (SIZES, GROWTH)
    cells = [(kind, *size) for kind in DATA for size in sizes]
    cells += [("truncated", *size) for size in growth]
    # The slowest first, so that no process is left with one of them at the end.
    tasks = sorted(((*cell, r) for cell in cells for r in range(repeats)), key=_cost)
    rows = run_tasks(run, tasks, jobs)
    rows.sort(key=lambda row: (row["kind"], row["dim"], row["n"], row["repeat"]))
    document = {**stamp(command), "sizes": sizes, "growth": growth, "rows": rows}
    document["path"] = path_example()
    return publish(document, "graphs", out, docs, graphs_page.write)


def _cost(task: tuple[str, int, int, int]) -> float:
    return -task[1] * math.sqrt(task[2])


if __name__ == "__main__":
    run_command(measure, "python -m benchmarks.graphs --repeats 10 --jobs 16")

"""Coverage of the intervals of `inference.fit`, and the variance that directions add.

Data sets are drawn from known models and fitted by exact, sliced and variance-reduced score
matching. For every parameter: how often its 95% interval covers the truth, and the variance of
the estimates relative to exact score matching, beside what `how_many_projections` predicts.
Writes the numbers as JSON, and docs/coverage.md with its picture.

Example:
    python -m benchmarks.coverage --jobs 16
    python -m benchmarks.coverage --datasets 20 --points 200 --out smoke.json --docs smoke
"""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor

import scorematching as sm
from benchmarks.harness.command import Docs, command_line, run_command
from benchmarks.harness.provenance import stamp
from benchmarks.pages import coverage as coverage_page
from scorematching.distributions import StudentT
from scorematching.domains import PositiveOrthant
from scorematching.inference import (
    FitResult,
    NotConvergedError,
    SingularInformationError,
    fit,
    models,
)

HOME = Path(__file__).parent
LEVEL = 0.95
PREDICTED = 20
"""Data sets of which the prediction of the added variance is averaged."""


class Case(NamedTuple):
    """A model with known parameters.

    Attributes:
        model: what is fitted.
        start: initial values, for a model that is a function.
        draw: points of a data set.
        truth: the parameters.
    """

    model: Any
    start: dict[str, Any] | None
    draw: Callable[[int, torch.Generator], Tensor]
    truth: dict[str, float]


PRECISION = torch.tensor([[2.0, 0.6, 0.0], [0.6, 1.5, -0.4], [0.0, -0.4, 1.0]], dtype=torch.float64)
DEGREES = 8.0


def draw_normal(n: int, generator: torch.Generator) -> Tensor:
    """Points with the given precision."""
    z = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(PRECISION).T, z.T, upper=True).T


def student_t(theta: dict[str, Tensor], x: Tensor) -> Tensor:
    """Independent Student-t coordinates with one number of degrees of freedom and one scale."""
    nu, scale = theta["log_nu"].exp(), theta["log_scale"].exp()
    return -0.5 * (nu + 1) * ((x / scale).square() / nu).log1p().sum(-1)


def draw_student_t(n: int, generator: torch.Generator) -> Tensor:
    """Points of unit scale."""
    like = torch.tensor(DEGREES, dtype=torch.float64)
    return StudentT(3, like).sample(n, generator)


def draw_half_normal(n: int, generator: torch.Generator) -> Tensor:
    """A standard normal distribution, truncated to x > 0."""
    return torch.randn(n, 1, generator=generator, dtype=torch.float64).abs()


def cases() -> dict[str, Case]:
    """The models by name."""
    upper = {f"precision[{i},{j}]": PRECISION[i, j].item() for i in range(3) for j in range(i, 3)}
    half_line = PositiveOrthant("min(log(1+x), 2)")
    return {
        "Gaussian precision": Case(models.Gaussian(3, centred=True), None, draw_normal, upper),
        "Student-t": Case(
            student_t,
            {"log_nu": 2.0, "log_scale": 0.0},
            draw_student_t,
            {"log_nu": float(np.log(DEGREES)), "log_scale": 0.0},
        ),
        "truncated normal": Case(
            models.TruncatedGaussian(1, domain=half_line),
            None,
            draw_half_normal,
            {"linear[0]": 0.0, "precision[0,0]": 1.0},
        ),
    }


def objectives() -> Iterator[tuple[str, sm.Objective]]:
    """Exact score matching, then both sliced objectives with M = 1 and 4."""
    yield "SM", sm.ScoreMatching()
    projections = {"Rademacher": sm.Rademacher(balanced=False), "Gaussian": sm.Gaussian()}
    for name, kind in (("SSM", sm.SlicedScoreMatching), ("SSM-VR", sm.SlicedScoreMatchingVR)):
        for label, projection in projections.items():
            for m in (1, 4):
                yield f"{name} {label} M={m}", kind(projection, num_projections=m)


# One data set.


def dataset(name: str, seed: int, points: int) -> dict[str, Any]:
    """All objectives on one data set: estimates, standard errors, and predictions for a few."""
    case = cases()[name]
    generator = torch.Generator().manual_seed(seed)
    x = case.draw(points, generator)
    return {
        label: one_fit(case, x, objective, generator, seed) for label, objective in objectives()
    }


def one_fit(
    case: Case, x: Tensor, objective: sm.Objective, generator: torch.Generator, seed: int
) -> list[list[float]]:
    """Estimates, standard errors and, for a few, the predicted inflation; NaN for a refused fit."""
    try:
        result = fit(case.model, x, objective, case.start, generator=generator, check=seed == 0)
    except (NotConvergedError, SingularInformationError):
        return [[math.nan] * len(case.truth)] * 2
    found = [list(result.params.values()), list(result.bse.values())]
    if seed < PREDICTED and not isinstance(objective, sm.ScoreMatching):
        found.append(predicted(result, objective))
    return found


def predicted(result: FitResult, objective: Any) -> list[float]:
    """The inflation of every parameter's variance at the number of directions in use."""
    how = result.how_many_projections()
    return list(how.inflation[how.counts.index(objective.num_projections)])


def work(arguments: tuple[str, int, int, int]) -> list[dict[str, Any]]:
    """A few data sets, in a process with one thread."""
    torch.set_num_threads(1)
    name, first, last, points = arguments
    return [dataset(name, seed, points) for seed in range(first, last)]


def simulate(name: str, datasets: int, points: int, jobs: int) -> list[dict[str, Any]]:
    """All data sets of a model, in order."""
    size = max(1, min(50, datasets // jobs))
    chunks = [(name, i, min(i + size, datasets), points) for i in range(0, datasets, size)]
    if jobs == 1:
        return [row for chunk in chunks for row in work(chunk)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        return [row for rows in pool.map(work, chunks) for row in rows]


# All data sets.


def summarise(name: str, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each objective and parameter."""
    truth = cases()[name].truth
    half = float(torch.special.ndtri(torch.tensor((1 + LEVEL) / 2, dtype=torch.float64)))
    exact = np.array([data["SM"][0] for data in found])
    for label in found[0]:
        estimates, errors = (np.array([data[label][i] for data in found]) for i in (0, 1))
        fitted = np.isfinite(estimates + exact).all(1)
        covered = abs(estimates - np.array(list(truth.values()))) <= half * errors
        failures = int((~np.isfinite(estimates).all(1)).sum())
        estimates, errors = estimates[fitted], errors[fitted]
        off = estimates - np.array(list(truth.values()))
        forecasts = [data[label][2] for data in found if len(data[label]) > 2]
        ratio, error = inflation(estimates, exact[fitted])
        for j, parameter in enumerate(truth):
            yield {
                "model": name,
                "objective": label,
                "parameter": parameter,
                "coverage": float(covered[:, j].mean()),
                "failures": failures,
                "bias_over_sd": float(off[:, j].mean() / estimates[:, j].std()),
                "mean_se_over_sd": float(errors[:, j].mean() / estimates[:, j].std()),
                "inflation": float(ratio[j]),
                "inflation_error": float(error[j]),
                "predicted": float(np.mean(forecasts, 0)[j]) if forecasts else 1.0,
            }


def inflation(estimates: Any, exact: Any) -> tuple[Any, Any]:
    """The ratio of variances and its standard error, by the delta method over data sets."""
    squares, base = ((e - e.mean(0)) ** 2 for e in (estimates, exact))
    ratio = squares.mean(0) / base.mean(0)
    residual = (squares - ratio * base) / base.mean(0)
    return ratio, residual.std(0) / len(residual) ** 0.5


Datasets = Annotated[int, typer.Option(min=2, help="Data sets of each model.")]
Points = Annotated[int, typer.Option(min=50, help="Points of each data set.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")]
Out = Annotated[Path | None, typer.Option(help="JSON file to write.")]


def measure(
    datasets: Datasets = 2000,
    points: Points = 2000,
    jobs: Jobs = 1,
    out: Out = None,
    docs: Docs = None,
) -> Path:
    """Measure the coverage of intervals; write the numbers and docs/coverage.md."""
    command = command_line("python -m benchmarks.coverage", measure, locals())
    out, docs = out or HOME / "results" / "coverage.json", docs or HOME.parent / "docs"
    document: dict[str, Any] = {**stamp(command), "datasets": datasets, "points": points}
    document |= {"level": LEVEL, "rows": []}
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in cases():
        document["rows"] += summarise(name, simulate(name, datasets, points, jobs))
        out.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{name}: done", flush=True)
    page = coverage_page.write(document, docs)
    print(coverage_page.verdict(document))
    return page


if __name__ == "__main__":
    run_command(measure, "python -m benchmarks.coverage --jobs 16")

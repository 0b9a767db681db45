"""What local curvature smoothing (LCSS) is worth beside SSM-VR.

For a network at random weights and after training, `variance_report` measures the variance of the
parameter gradient that random directions cause, and the time of a step; the error of the gradient
that smoothing causes is measured against exact score matching. Writes the numbers as JSON, and
docs/local-curvature.md.

Example:
    python -m benchmarks.local_curvature
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import scorematching as sm
from benchmarks.harness.command import Docs, Output, Smoke, Threads, command_line, run_command
from benchmarks.harness.provenance import stamp
from benchmarks.pages import local_curvature as page
from scorematching.diagnostics.variance.report import VarianceRow

HOME = Path(__file__).parent
SIGMAS = (0.01, 0.03, 0.1, 0.3, 1.0)
DIM, BATCH = 10, 256


def mixture() -> sm.distributions.GaussianMixture:
    """Three normal distributions of unit total spread, in ten dimensions."""
    means = torch.zeros(3, DIM, dtype=torch.float64)
    means[0, 0], means[1, 0], means[2, 1] = 1.5, -1.5, 2.0
    return sm.distributions.GaussianMixture([0.4, 0.4, 0.2], means, [0.5, 0.5, 0.5])


def network(steps: int, generator: torch.Generator) -> tuple[nn.Module, Tensor]:
    """A network trained for some steps by SSM-VR, and a batch of points."""
    points = mixture().sample(20_000, generator).double()
    net = sm.models.MLPDensity(DIM, (64, 64), nn.Softplus, generator=generator).double()
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    objective = sm.SlicedScoreMatchingVR()
    for _ in range(steps):
        batch = points[torch.randint(len(points), (BATCH,), generator=generator)]
        optimiser.zero_grad()
        objective(net, batch, generator).mean().backward()
        optimiser.step()
    return net, points[:BATCH]


def gradient(loss: Tensor, net: nn.Module) -> Tensor:
    """Of the mean loss, all parameters in one vector."""
    found = torch.autograd.grad(loss.mean(), list(net.parameters()), allow_unused=True)
    return torch.cat([g.reshape(-1) for g in found if g is not None])


def error_of_smoothing(
    net: nn.Module, x: Tensor, sigma: float, draws: int, generator: torch.Generator
) -> float:
    """The expected gradient against that of exact score matching, relative to the latter.

    Pairs eps, -eps have the same expectation and far less variance. The noise that is left is
    removed by the inner product of two independent estimates of the difference.
    """
    exact = gradient(sm.ScoreMatching()(net, x), net)
    objective, field = sm.LocalCurvatureSmoothing(sigma=sigma), sm.LogDensityField(net)
    halves = []
    for _ in range(2):
        total = torch.zeros_like(exact)
        for _ in range(draws):
            eps = objective.draw(x, generator)
            total += gradient(objective.loss(field, x, torch.cat([eps, -eps])), net) / draws
        halves.append(total - exact)
    return float((halves[0] @ halves[1]).clamp_min(0).sqrt() / exact.norm())


def rows(stage: str, steps: int, repeats: int, draws: int) -> Iterator[dict[str, Any]]:
    """LCSS at every radius, relative to SSM-VR with one normal and with one sign direction."""
    generator = torch.Generator().manual_seed(0)
    net, x = network(steps, generator)
    options: Any = {"num_projections": (1,), "repeats": repeats, "show": False}
    signs, normal = sm.Rademacher(balanced=False), sm.Gaussian()
    base = sm.variance_report(
        net,
        x,
        sm.SlicedScoreMatchingVR(normal),
        projections=[normal, signs],
        generator=generator,
        **options,
    )
    reference = {row.projection: row for row in base.rows if "VR" in row.objective}
    in_normal, in_signs = (variance(reference[f"{p} iid"]) for p in ("Gaussian", "Rademacher"))
    for sigma in SIGMAS:
        report = sm.variance_report(
            net,
            x,
            sm.LocalCurvatureSmoothing(sigma=sigma),
            projections=[normal],
            generator=generator,
            **options,
        )
        own = next(row for row in report.rows if "Local" in row.objective)
        yield {
            "stage": stage,
            "sigma": sigma,
            "over_normal": variance(own) / in_normal,
            "over_signs": variance(own) / in_signs,
            "over_data": variance(own) / float(base.data_gradient_variance or math.nan),
            "time": own.seconds / reference["Rademacher iid"].seconds,
            "error": error_of_smoothing(net, x, sigma, draws, generator),
        }


def variance(row: VarianceRow) -> float:
    """Of the gradient."""
    return math.nan if row.gradient_variance is None else row.gradient_variance


Steps = Annotated[int, typer.Option(min=1, help="Training steps before the second stage.")]


def measure(
    steps: Steps = 3000,
    smoke: Smoke = False,
    threads: Threads = 1,
    output: Output = None,
    docs: Docs = None,
) -> Path:
    """Measure variance, time and error of LCSS; write the numbers and docs/local-curvature.md."""
    command = command_line("python -m benchmarks.local_curvature", measure, locals())
    torch.set_num_threads(threads)
    repeats, draws = (4, 2) if smoke else (400, 200)
    output, docs = output or HOME / "results" / "local_curvature.json", docs or HOME.parent / "docs"
    document: dict[str, Any] = {**stamp(command), "dim": DIM, "batch": BATCH, "rows": []}
    for stage, count in (("at random weights", 0), ("after training", 5 if smoke else steps)):
        document["rows"] += rows(stage, count, repeats, draws)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    written = page.write(document, docs)
    print(f"wrote {output.name} and {written.name}")
    return written


if __name__ == "__main__":
    run_command(measure, "python -m benchmarks.local_curvature")

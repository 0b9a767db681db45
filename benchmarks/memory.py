"""Memory of evaluations and estimators against their budget: ``python -m benchmarks.memory``.

Every function with ``max_memory=`` is called with some budgets. The peak is that of torch's own
profiler, which sees every allocation; the library measures by other means. Memory beside model,
points and results counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import typer
from torch.profiler import ProfilerActivity, profile

import scorematching as sm
from benchmarks.harness.command import Output, Smoke, command_line, run_command
from benchmarks.harness.provenance import stamp
from scorematching.distributions import Gaussian
from scorematching.evaluation.log_z.importance import importance_log_z

PROGRAM = "python -m benchmarks.memory"

Points = Annotated[int, typer.Option(min=1, help="Number of points.")]
Dim = Annotated[int, typer.Option(min=1, help="Coordinates of a point.")]


@dataclass(frozen=True)
class Peak:
    """Memory of one call.

    Attributes:
        name: of the function.
        budget: bytes that it may take; None is without limit.
        bytes: that it took.
        result: what it returned, as numbers.
    """

    name: str
    budget: int | None
    bytes: int
    result: torch.Tensor

    @property
    def ratio(self) -> float:
        """The peak relative to the budget."""
        return self.bytes / (self.budget or self.bytes)


Call = Callable[[int | None], Any]
"""A function of a budget."""


def calls(points: int, dim: int, seed: int = 0) -> dict[str, Call]:
    """The functions with a budget, each at so many points."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(points, dim, generator=g)
    density = sm.models.MLPDensity(dim=dim, hidden=(128, 128), generator=g)
    network = sm.VectorField(sm.models.ScoreNetwork(dim=dim, hidden=(128,)))
    normal, few = Gaussian(torch.zeros(dim), torch.eye(dim)), x[:300, :4].double().numpy()
    log_z = importance_log_z(normal, normal, num=1000, generator=g)
    many, evaluate = x[:, :4].double().numpy(), sm.evaluation
    found: dict[str, Call] = {
        "score_matching_losses, density": lambda m: evaluate.score_matching_losses(
            density, x, max_memory=m
        ),
        "score_matching_losses, network": lambda m: evaluate.score_matching_losses(
            network, x, max_memory=m
        ),
        "fisher_divergence": lambda m: (
            evaluate.fisher_divergence(density, lambda x: -x, x, max_memory=m).mean
        ),
        "compare": lambda m: evaluate.compare(density, network, x, max_memory=m).difference.mean,
        "log_likelihood": lambda m: evaluate.log_likelihood(density, x, log_z, max_memory=m).mean,
    }
    kinds = {
        "Stein": sm.SteinScoreEstimator(),
        "spectral": sm.SpectralScoreEstimator(),
        "kernel": sm.KernelExpFamilyEstimator(),
        "density": sm.DensityEstimator("none", base="kde", random_state=seed),
    }
    for name, estimator in kinds.items():
        estimator.fit(few)
        found |= {f"{name}.{way}": call for way, call in _queries(estimator, many)}
    return found


def _queries(estimator: Any, X: Any) -> Iterator[tuple[str, Call]]:
    """The methods of an estimator that take points."""
    for way in ("grad_log_density", "score_samples", "score"):
        if hasattr(estimator, way):
            yield way, partial(_query, getattr(estimator, way), X)


def _query(method: Callable[..., Any], X: Any, max_memory: int | None) -> Any:
    return method(X, max_memory=max_memory)


def measure(name: str, call: Call, budget: int | None) -> Peak:
    """The peak of a call; functions are called once before, since first calls check the model."""
    call(None)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call(budget)
    kineto: Any = profiler.profiler
    events = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return Peak(name, budget, peak, torch.as_tensor(result).double().flatten())


def measure_all(points: int, dim: int, shares: tuple[float, ...]) -> Iterator[list[Peak]]:
    """For every function its peak without a budget, and with shares of that as budgets."""
    for name, call in calls(points, dim).items():
        free = measure(name, call, None)
        yield [free, *(measure(name, call, int(share * free.bytes)) for share in shares)]


def main(
    points: Points = 4096, dim: Dim = 20, smoke: Smoke = False, output: Output = None
) -> dict[str, Any]:
    """Measure the memory of every function with a budget, by two budgets each."""
    command = command_line(PROGRAM, main, locals())
    rows = []
    print(f"{'function':36} {'free MB':>8} {'budget MB':>10} {'peak MB':>8} {'ratio':>6}")
    for free, *peaks in measure_all(256 if smoke else points, dim, (0.5, 0.25)):
        for peak in peaks:
            megabytes = [size / 1e6 for size in (free.bytes, peak.budget or 0, peak.bytes)]
            error = (peak.result - free.result).abs().max().item()
            rows.append({"name": peak.name, "free": free.bytes, "budget": peak.budget,
                         "peak": peak.bytes, "error": error})  # fmt: skip
            numbers = "{:8.2f} {:10.2f} {:8.2f}".format(*megabytes)
            print(f"{peak.name:36} {numbers} {peak.ratio:6.2f}")
    document = {**stamp(command, "cpu"), "rows": rows}
    if output is not None:
        output.write_text(json.dumps(document, indent=1) + "\n")
    return document


if __name__ == "__main__":
    run_command(main, PROGRAM)

"""Which of two right routes is taken, by times that are given instead of measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scorematching import LogDensityField, PerformanceWarning, SlicedScoreMatchingVR
from scorematching.derivatives import memory, speed

X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3)


@pytest.mark.parametrize(
    ("ratio", "route", "measurements"),
    [(0.7, "traced", 4), (1.5, "traced", 10), (3.0, "reverse", 10), (5.0, "reverse", 4)],
)
def test_the_faster_route_is_taken(
    ratio: float, route: str, measurements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close result is measured again, and never keeps a route that is three times slower."""
    taken = []

    def seconds(model: object, way: object, *rest: object) -> float:
        taken.append(way)
        return ratio if len(taken) % 2 else 1.0  # in turns, the trace first

    monkeypatch.setattr(speed, "_seconds", seconds)

    def model(x: torch.Tensor) -> torch.Tensor:  # torch.i0 has no rule
        return torch.i0(x).sum(-1)

    field = LogDensityField(model)
    for _ in range(5):
        SlicedScoreMatchingVR()(field, X)
    findings = memory.findings_of(model, "log-density")
    assert findings.routes.get("curvature", "traced") == route
    assert len(taken) == measurements


def test_a_batch_that_cannot_be_traced_when_times_are_measured() -> None:
    """Times are measured at the third use; that of a last batch of one ended in an inner error."""

    def plain(x: torch.Tensor) -> torch.Tensor:
        return (torch.i0(x) + x).sum(-1)

    def model(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            return plain(x)
        return torch.i0(x).sum(-1) + torch.linalg.eigvalsh(torch.diag_embed(x)).sum(-1)  # no rule

    objective, field = SlicedScoreMatchingVR(), LogDensityField(model)
    v = torch.ones_like(X)
    for _ in range(2):
        objective.loss(field, X, v)
    with pytest.warns(PerformanceWarning, match="eigh"):
        loss = objective.loss(field, X[:1], v[:1])
    torch.testing.assert_close(loss, objective.loss(LogDensityField(plain), X[:1], v[:1]))


def test_measuring_takes_time_and_leaves_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    measure, taken = speed._seconds, list[float]()

    def seconds(*arguments: Any) -> float:
        taken.append(measure(*arguments))
        return taken[-1]

    monkeypatch.setattr(speed, "_seconds", seconds)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.i0(x * weight).sum(-1)

    field = LogDensityField(model)
    for _ in range(4):
        SlicedScoreMatchingVR()(field, X)
    assert len(taken) in (4, 10) and min(taken) > 0
    assert weight.grad is None

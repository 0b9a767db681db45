"""Golden losses: twenty training steps of every objective, digit by digit.

The digits in ``tests/golden/losses.json`` guard against changes that no identity forbids, such as
another order of random draws. When such a change is intended, write them again and say so in the
changelog::

    python -m tests.test_golden --write

All numbers are drawn and computed in float64, so that processors differ by rounding errors of
1e-16, which twenty steps of plain gradient descent leave below 1e-11 (adaptive optimisers would
divide them by small numbers). Curvature propagation is the exception: it takes square roots of
curvatures that pass through zero, and each step multiplies a rounding error by about ten, so only
its first six losses are compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import scorematching as sm
from tests.recovery import GaussianModel, gaussian_points

FILE = Path(__file__).parent / "golden" / "losses.json"
STEPS = 20
COMPARED = {"CurvaturePropagation": 6}
TOLERANCE = 1e-9

OBJECTIVES: dict[str, sm.Objective] = {
    "ScoreMatching": sm.ScoreMatching(),
    "SlicedScoreMatching": sm.SlicedScoreMatching(),
    "SlicedScoreMatching-gaussian-M2": sm.SlicedScoreMatching(sm.Gaussian(), num_projections=2),
    "SlicedScoreMatchingVR": sm.SlicedScoreMatchingVR(),
    "SlicedScoreMatchingVR-sphere-orthogonal-M2": sm.SlicedScoreMatchingVR(
        sm.Sphere(orthogonal=True), num_projections=2
    ),
    "SlicedScoreMatchingVR-beta0.5": sm.SlicedScoreMatchingVR(beta=0.5),
    "SlicedScoreMatchingVR-optimal": sm.SlicedScoreMatchingVR(beta="optimal"),
    "DenoisingScoreMatching": sm.DenoisingScoreMatching(sigma=0.3),
    "DenoisingScoreMatching-control": sm.DenoisingScoreMatching(sigma=0.1, control_variate=True),
    "FiniteDifferenceSSM": sm.FiniteDifferenceSSM(),
    "LocalCurvatureSmoothing": sm.LocalCurvatureSmoothing(sigma=1.0, num_projections=8),
    "NoiseContrastive": sm.NoiseContrastive(eps=1.0),
    "ApproximateBackprop": sm.ApproximateBackprop(),
    "CurvaturePropagation": sm.CurvaturePropagation(),
    "MaximumLikelihood": sm.MaximumLikelihood(),
}


def losses(objective: sm.Objective) -> list[float]:
    """Mean loss before each of twenty steps of plain gradient descent."""
    x = gaussian_points(64, seed=1)
    model: nn.Module = GaussianModel()
    if not isinstance(objective, sm.MaximumLikelihood):  # which needs a normalised model
        model = sm.models.MLPDensity(dim=2, hidden=(8, 8)).double()
        weights = torch.Generator().manual_seed(0)
        for parameter in model.net.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=weights)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = torch.Generator().manual_seed(2)
    record = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = objective(model, x, generator=noise).mean()
        loss.backward()
        optimiser.step()
        record.append(loss.item())
    return record


def agree(found: list[float], name: str) -> bool:
    """Whether losses are the golden ones of that name."""
    steps = COMPARED.get(name, STEPS)
    golden = json.loads(FILE.read_text())[name][:steps]
    return found[:steps] == pytest.approx(golden, rel=TOLERANCE, abs=0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_training_gives_the_golden_losses(name: str) -> None:
    assert agree(losses(OBJECTIVES[name]), name)
    golden = json.loads(FILE.read_text())[name]
    assert golden[-1] < golden[0], "training must lower the loss"
    assert len(set(golden)) == STEPS


class Biased(sm.CurvaturePropagation):
    """A trace that is wrong by a hundred-millionth."""

    def terms(self, *args: Any) -> sm.Terms:
        first, second = super().terms(*args)
        return sm.Terms(first, (1 + 1e-8) * second)


@pytest.mark.parametrize(
    "name, changed",
    [
        ("SlicedScoreMatchingVR", sm.SlicedScoreMatchingVR(beta=1 - 1e-7)),
        ("DenoisingScoreMatching", sm.DenoisingScoreMatching(sigma=0.3 * (1 + 1e-8))),
        ("CurvaturePropagation", Biased()),
    ],
)
def test_small_changes_are_seen(name: str, changed: sm.Objective) -> None:
    assert not agree(losses(changed), name)


def test_every_objective_has_golden_losses() -> None:
    exported = (getattr(sm, name) for name in sm.__all__)
    members = {c for c in exported if isinstance(c, type) and issubclass(c, sm.Objective)}
    assert {type(objective) for objective in OBJECTIVES.values()} == members - {sm.Objective}
    assert set(json.loads(FILE.read_text())) == set(OBJECTIVES)


def write() -> None:
    """Write the losses of this version; Python's repr of a float keeps all its digits."""
    record = {name: losses(objective) for name, objective in OBJECTIVES.items()}
    FILE.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_golden --write")
    write()

"""Golden losses: twenty training steps of every objective, digit by digit.

The digits in ``tests/golden/losses.json`` guard against changes that no law forbids, such as
another order of random draws. When such a change is meant, write them anew and say so in the
changelog::

    python -m tests.test_golden --write
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import scorematching as sm
from tests.recovery import GaussianModel, gaussian_points

FILE = Path(__file__).parent / "golden" / "losses.json"
STEPS = 20

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
    "NoiseContrastive": sm.NoiseContrastive(eps=1.0),
    "ApproximateBackprop": sm.ApproximateBackprop(),
    "CurvaturePropagation": sm.CurvaturePropagation(),
    "MaximumLikelihood": sm.MaximumLikelihood(),
}


def losses(objective: sm.Objective) -> list[float]:
    """Mean loss before each of twenty steps of plain gradient descent, in float64.

    Plain, because the steps of adaptive optimisers divide rounding errors by themselves.
    """
    x = gaussian_points(64, seed=1)
    model: nn.Module = GaussianModel()
    if not isinstance(objective, sm.MaximumLikelihood):  # which wants a normalised model
        weights = torch.Generator().manual_seed(0)
        model = sm.models.MLPDensity(dim=2, hidden=(8, 8), generator=weights).double()
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_training_gives_the_golden_losses(name: str) -> None:
    golden = json.loads(FILE.read_text())[name]
    assert losses(OBJECTIVES[name]) == pytest.approx(golden, rel=1e-9, abs=0)
    assert golden[-1] < golden[0], "training must lower the loss"
    assert len(set(golden)) == STEPS


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

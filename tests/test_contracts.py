"""Every member of every family under its contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import scorematching as sm
from tests import contracts
from tests.contracts import FIELD_CASES, combinations, members, variations

PROJECTIONS = [p for member in members(sm.Projection) for p in combinations(member)]
OBJECTIVES = [o for member in members(sm.Objective) for o in variations(member)]


@pytest.mark.parametrize("member", PROJECTIONS, ids=repr)
class TestProjections(contracts.ProjectionContract):
    """Laws of directions."""


@pytest.mark.parametrize("member", FIELD_CASES, ids=repr)
class TestFields(contracts.FieldContract):
    """Log-densities, features and score networks."""


@pytest.mark.parametrize("member", OBJECTIVES, ids=repr)
class TestObjectives(contracts.ObjectiveContract):
    """Objectives, each with its defaults and with every other option."""


def test_every_public_base_is_a_family() -> None:
    assert set(contracts.bases()) == set(contracts.FAMILIES.values())


def test_introspection_finds_the_known_members() -> None:
    """The families are not empty, or their contracts would hold for nobody."""
    found = {name: {m.__name__ for m in members(base)} for name, base in contracts.FAMILIES.items()}
    assert found["Projection"] >= {"Rademacher", "SplitRademacher", "Gaussian", "Sphere"}
    assert found["Field"] >= {"LogDensityField", "VectorField"}
    assert found["Objective"] >= {
        "ScoreMatching",
        "SlicedScoreMatching",
        "SlicedScoreMatchingVR",
        "DenoisingScoreMatching",
        "FiniteDifferenceSSM",
        "MaximumLikelihood",
        "NoiseContrastive",
    }


def test_every_field_has_a_case() -> None:
    assert {case.member for case in FIELD_CASES} == set(members(sm.Field))


def test_options_are_all_tried() -> None:
    projections = {repr(p) for p in PROJECTIONS}
    assert "Sphere(orthogonal=True, balanced=True)" in projections
    assert len(projections) == 4 * len(members(sm.Projection)) - 2  # splitting has one option
    assert sm.SlicedScoreMatchingVR(beta="optimal") in OBJECTIVES
    assert sm.DenoisingScoreMatching(sigma=0.5, control_variate=True) in OBJECTIVES


# Teeth: members that break one promise each.


class GlobalDraws(sm.Gaussian):
    """Ignores the generator it is given."""

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        return torch.randn(num, *x.shape, dtype=x.dtype)


class UnitSphere(sm.Sphere):
    """Directions of length one."""

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        return super().draw(x, num, generator) / x[0].numel() ** 0.5


class SameForAll(sm.Rademacher):
    """The same direction for every point."""

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        return super().draw(x[:1], num, generator).expand(num, *x.shape)


class MarksPoints(sm.LogDensityField):
    """Makes the caller's tensor record derivatives."""

    def score(self, x: Tensor) -> Tensor:
        return super().score(x.requires_grad_())


class LosesHistory(sm.LogDensityField):
    """Cuts points off from what they were computed from."""

    def score(self, x: Tensor) -> Tensor:
        return super().score(x.detach())


class Reduced(sm.ScoreMatching):
    """A mean where losses per point are promised."""

    def __call__(self, model: Any, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return super().__call__(model, x, generator).mean()


class Accumulates(sm.ScoreMatching):
    """Leaves gradients in the parameters."""

    def __call__(self, model: Any, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        super().__call__(model, x, generator).sum().backward()
        return super().__call__(model, x, generator)


class Centred(sm.ScoreMatching):
    """A loss that knows its neighbours."""

    def loss(self, field: sm.Field, x: Tensor, noise: Any = None) -> Tensor:
        losses = super().loss(field, x, noise)
        return losses - losses.mean()


def coupled(event: tuple[int, ...]) -> torch.nn.Module:
    """A log-density whose rows depend on each other."""
    module = contracts.Density(event)
    module.register_forward_pre_hook(lambda _, args: (args[0] - args[0].mean(0),))
    return module


Projections, Fields, Objectives = (
    contracts.ProjectionContract(),
    contracts.FieldContract(),
    contracts.ObjectiveContract(),
)
BROKEN = {
    "global draws": lambda: Projections.test_generator_decides(GlobalDraws()),
    "unit sphere": lambda: Projections.test_second_moment_is_the_identity(UnitSphere()),
    "same for all": lambda: Projections.test_directions_are_uncorrelated(SameForAll()),
    "marks points": lambda: Fields.test_caller_keeps_x_and_parameters(
        contracts.FieldCase(MarksPoints, contracts.Density), (3,)
    ),
    "loses history": lambda: Fields.test_connected_to_points_that_want_gradients(
        contracts.FieldCase(LosesHistory, contracts.Density), (3,)
    ),
    "coupled rows": lambda: Fields.test_rows_are_independent(
        contracts.FieldCase(sm.LogDensityField, coupled), (3,)
    ),
    "reduced": lambda: Objectives.test_one_loss_per_point(Reduced(), (3,), torch.float64),
    "accumulates": lambda: Objectives.test_caller_keeps_x_and_parameters(Accumulates()),
    "centred": lambda: Objectives.test_batching_does_not_matter(Centred(), (3,)),
}


@pytest.mark.parametrize("promise", BROKEN)
def test_contract_has_teeth(promise: str) -> None:
    # The library itself refuses coupled rows.
    with pytest.raises((AssertionError, ValueError)):
        BROKEN[promise]()

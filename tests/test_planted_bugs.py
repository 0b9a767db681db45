"""Teeth: the checks of this suite reject the mistakes they are there for.

Every bug below has been made in some library or is one slip away from this one. Each stands beside
the checks that must reject it; the same checks accept the right objectives in the tests they come
from, and here once more, so that a check that rejects everything does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from scorematching import (
    DenoisingScoreMatching,
    Field,
    FiniteDifferenceSSM,
    LogDensityField,
    NoiseContrastive,
    Objective,
    Projection,
    Rademacher,
    ScoreMatching,
    SlicedScoreMatching,
    SlicedScoreMatchingVR,
    Sphere,
    Terms,
)
from tests.laws import (
    axes_design,
    check_against_oracle,
    check_averages_over_directions,
    check_averages_to_exact,
    check_directions_are_independent,
    check_unbiased,
    sign_design,
)
from tests.models_zoo import CONV, MLP, Case
from tests.recovery import COVARIANCE, GaussianModel, fit, gaussian_truth
from tests.test_laws import SMALL, joint_choices
from tests.test_recovery import assert_recovers

Check = Callable[[Objective, Case], None]


def law(objective: Objective, case: Case) -> None:
    check_averages_to_exact(objective, case, axes_design)
    check_averages_to_exact(objective, case, sign_design)


def unbiased(objective: Objective, case: Case) -> None:
    check_unbiased(objective, case, detect=0.1, n=20_000)


def recovery(objective: Objective, case: Case) -> None:
    found = fit(objective, GaussianModel(), case.wrap, n=4000)
    assert_recovers(found, gaussian_truth(COVARIANCE))


# Broken fields.


class BiasedCurvature(LogDensityField):
    """Two per cent too much curvature."""

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s, curvature = super().score_and_curvature(x, v)
        return s, 1.02 * curvature


class FlippedCurvature(LogDensityField):
    """The curvature of the energy instead of the log-density's."""

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s, curvature = super().score_and_curvature(x, v)
        return s, -curvature


class FlippedScore(LogDensityField):
    """The gradient of the energy: all derivatives change sign together."""

    def __init__(self, log_density: Callable[[Tensor], Tensor], route: str = "auto") -> None:
        super().__init__(lambda x: -log_density(x), route=route)


class BiasedEverywhere(LogDensityField):
    """Two per cent in every trace, so that the objectives still agree with each other."""

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s, curvature = super().score_and_curvature(x, v)
        return s, 1.02 * curvature

    def score_and_divergence(
        self, x: Tensor, max_memory: int | None = None
    ) -> tuple[Tensor, Tensor]:
        s, divergence = super().score_and_divergence(x, max_memory)
        return s, 1.02 * divergence


class LastAxisOnly(LogDensityField):
    """A mean over leading event axes where a sum should be: right for flat vectors only."""

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s, curvature = super().score_and_curvature(x, v)
        return s, curvature / (x[0].numel() / x.shape[-1])


BROKEN_FIELDS: list[tuple[type[Field], Objective, Check]] = [
    (BiasedCurvature, SlicedScoreMatching(), law),
    (BiasedCurvature, SlicedScoreMatchingVR(), law),
    (BiasedCurvature, SlicedScoreMatchingVR(), check_against_oracle),
    (FlippedCurvature, SlicedScoreMatching(), law),
    (FlippedCurvature, SlicedScoreMatchingVR(), recovery),
    (FlippedScore, ScoreMatching(), check_against_oracle),
    (FlippedScore, DenoisingScoreMatching(sigma=0.3), check_against_oracle),
    (FlippedScore, SlicedScoreMatchingVR(), recovery),
    (BiasedEverywhere, ScoreMatching(), check_against_oracle),
    (BiasedEverywhere, SlicedScoreMatchingVR(), check_against_oracle),
]


@pytest.mark.parametrize("field, objective, check", BROKEN_FIELDS)
def test_broken_fields_are_rejected(field: type[Field], objective: Objective, check: Check) -> None:
    with pytest.raises(AssertionError, match="differs by"):
        check(objective, replace(MLP, wrap=field))


def test_sum_over_the_last_axis_only_is_rejected() -> None:
    law(SlicedScoreMatchingVR(), replace(MLP, wrap=LastAxisOnly))  # vectors cannot tell
    with pytest.raises(AssertionError, match="differs by"):
        law(SlicedScoreMatchingVR(), replace(CONV, wrap=LastAxisOnly))


# Broken objectives.


class DroppedHalf(ScoreMatching):
    """``|s|^2 + tr grad s``."""

    def loss(self, field: Field, x: Tensor, noise: None) -> Tensor:
        first, second = self.terms(field, x, noise)
        return first.square().sum(-1) + second


class SlicedDroppedHalf(SlicedScoreMatching):
    """``(v.s)^2 + v'Hv``."""

    def loss(self, field: Field, x: Tensor, noise: Tensor) -> Tensor:
        first, second = self.terms(field, x, noise)
        return first.square().sum(-1) + second


class FlippedTrace(ScoreMatching):
    """``|s|^2 / 2 - tr grad s``."""

    def terms(self, field: Field, x: Tensor, noise: None = None) -> Terms:
        first, second = super().terms(field, x, noise)
        return Terms(first, -second)


class FlippedNoise(DenoisingScoreMatching):
    """``eps.s / sigma`` with the wrong sign: learns the inverted density."""

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        first, second = super().terms(field, x, noise)
        return Terms(first, -second)


class ForgottenRoot(SlicedScoreMatching):
    """Projections not divided by sqrt(M), so that their squares are summed over M."""

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        return Terms(*field.slice(x, noise))


class SummedCurvature(SlicedScoreMatchingVR):
    """Curvature summed instead of averaged over M."""

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        first, second = super().terms(field, x, noise)
        return Terms(first, noise.shape[0] * second)


class HalfCurvature(FiniteDifferenceSSM):
    """A second difference over 2 h^2."""

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        first, second = super().terms(field, x, noise)
        return Terms(first, second / 2)


class ReusedDirection(SlicedScoreMatchingVR):
    """One direction repeated M times: right on average, M times the work for nothing."""

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        v = self.projection.draw(x, 1, generator)
        return v.expand(self.num_projections, *x.shape)


class SharedDirection(SlicedScoreMatching):
    """One direction for all points of the batch: right on average, with the noise of one."""

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return super().draw(x[:1], generator).expand(self.num_projections, *x.shape)


@dataclass(frozen=True)
class UnitSphere(Projection):
    """Directions of length one: ``E[v v'] = I / D``."""

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        return Sphere().draw(x, num, generator) / x[0].numel() ** 0.5


IID = Rademacher(orthogonal=False, balanced=False)

BROKEN_OBJECTIVES: list[tuple[Objective, Check]] = [
    (DroppedHalf(), check_against_oracle),
    (DroppedHalf(), recovery),
    (SlicedDroppedHalf(), law),
    (SlicedDroppedHalf(), check_against_oracle),
    (FlippedTrace(), check_against_oracle),
    (FlippedTrace(), recovery),
    (FlippedNoise(sigma=0.3), check_against_oracle),
    (FlippedNoise(sigma=0.3), recovery),
    (ForgottenRoot(num_projections=3), check_averages_over_directions),
    (ForgottenRoot(num_projections=3), check_against_oracle),
    (SummedCurvature(num_projections=3), check_averages_over_directions),
    (SummedCurvature(num_projections=3), check_against_oracle),
    (SummedCurvature(num_projections=3), recovery),
    (HalfCurvature(eps=0.3), check_against_oracle),
    (HalfCurvature(eps=0.3), recovery),
    (SlicedScoreMatchingVR(UnitSphere()), unbiased),
    (SlicedScoreMatchingVR(UnitSphere()), recovery),
    (SlicedScoreMatching(UnitSphere()), unbiased),
    (ReusedDirection(IID, num_projections=4), check_directions_are_independent),
    (SharedDirection(IID), check_directions_are_independent),
]


@pytest.mark.parametrize("objective, check", BROKEN_OBJECTIVES)
def test_broken_objectives_are_rejected(objective: Objective, check: Check) -> None:
    with pytest.raises(AssertionError, match="differs"):
        check(objective, MLP)


def test_signs_of_a_contrast_are_told_apart() -> None:
    # Noise taken for data: the contrast of x -+ u with x instead of x with x -+ u.
    class Swapped(NoiseContrastive):
        def loss(self, field: Field, x: Tensor, noise: Tensor) -> Tensor:
            energy = LogDensityField(lambda y: -field.log_density(y))
            return super().loss(energy, x, noise)

    for check in (check_against_oracle, recovery):
        with pytest.raises(AssertionError, match="differs"):
            check(Swapped(eps=1.0), MLP)


def test_beta_estimated_on_its_own_directions_is_rejected() -> None:
    # The reason for two halves: a coefficient that has seen the directions it multiplies is biased.
    class Greedy(SlicedScoreMatchingVR):
        def _coefficient(self, curvature: Tensor, control: Tensor) -> Tensor:
            a, c = curvature.detach(), control.detach()
            return 1 + ((a - a.mean()) * c).sum() / c.square().sum()

    _, field, x = SMALL.make(n=4)
    exact = ScoreMatching()(field, x)
    for objective, bias in ((SlicedScoreMatchingVR(beta="optimal"), 0.0), (Greedy(beta=0.5), 0.01)):
        mean = torch.stack([objective.loss(field, x, v) for v in joint_choices(4)]).mean(0)
        worst = (mean - exact).abs().max()
        assert worst < 1e-12 if bias == 0 else worst > bias


# The same checks accept what is right.

RIGHT: list[tuple[Objective, Check]] = [
    (SlicedScoreMatching(), law),
    (SlicedScoreMatchingVR(num_projections=3), check_against_oracle),
    (SlicedScoreMatchingVR(num_projections=3), check_averages_over_directions),
    (SlicedScoreMatchingVR(Sphere()), unbiased),
    (SlicedScoreMatching(Sphere()), unbiased),
    (SlicedScoreMatchingVR(IID, num_projections=4), check_directions_are_independent),
    (SlicedScoreMatchingVR(), recovery),
]


@pytest.mark.parametrize("objective, check", RIGHT)
def test_right_objectives_are_accepted(objective: Objective, check: Check) -> None:
    check(objective, MLP)

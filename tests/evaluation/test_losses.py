"""Held-out losses against Gaussian closed forms, and exactly over all directions."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from scorematching import LogDensityField, ScoreMatching, VectorField
from scorematching.distributions import Gaussian
from scorematching.evaluation import (
    Estimate,
    fisher_divergence,
    paired_difference,
    score_matching_loss,
    score_matching_losses,
    sliced_fisher_divergence,
)
from scorematching.models import MLPDensity
from scorematching.projections import Projection, Rademacher
from tests import oracles
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

DATA = Gaussian(
    mean=torch.tensor([0.5, -1.0], dtype=torch.float64),
    covariance=torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64),
)
MODEL = Gaussian(
    mean=torch.tensor([0.0, -0.5], dtype=torch.float64),
    covariance=torch.tensor([[1.5, 0.0], [0.0, 1.2]], dtype=torch.float64),
)


def half_square(matrix: Tensor, mean: Tensor) -> float:
    """``0.5 E|matrix y|^2`` for y with the given mean and the covariance of DATA."""
    spread = torch.trace(matrix @ DATA.covariance @ matrix.T)
    return (0.5 * (spread + (matrix @ mean).square().sum())).item()


def closed_forms() -> tuple[float, float, float]:
    """J, L and C of MODEL on DATA.

    With P the precision of the model and Q that of the data, ``s = -P (x - m)``,
    ``s_d = -Q (x - mu)`` and ``s - s_d = (Q - P)(x - mu) - P (mu - m)``.
    """
    p, q, shift = MODEL.precision, DATA.precision, DATA.mean - MODEL.mean
    loss = half_square(p, shift) - torch.trace(p).item()
    constant = half_square(q, torch.zeros_like(shift))
    divergence = half_square(q - p, torch.zeros_like(shift))
    return loss, divergence + 0.5 * (p @ shift).square().sum().item(), constant


@dataclass(frozen=True)
class Given(Projection):
    """Directions that are given."""

    v: Tensor = field(default_factory=lambda: torch.zeros(0))

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        return self.v[:, None].expand(num, *x.shape)

    def _block(self, d: int) -> int:
        return d

    def _groups(self, *args: object) -> Tensor:
        raise NotImplementedError


@pytest.fixture
def network(generator: torch.Generator) -> MLPDensity:
    return MLPDensity(2, hidden=(5,), generator=generator).double()


def test_closed_forms_obey_the_law() -> None:
    loss, divergence, constant = closed_forms()
    assert divergence == pytest.approx(loss + constant, rel=IDENTITY)
    assert divergence > 0.1


def test_means_are_the_closed_forms(generator: torch.Generator) -> None:
    x = DATA.sample(40_000, generator)
    loss, divergence, _ = closed_forms()
    losses = score_matching_losses(MODEL, x)
    assert_mean(losses, loss, detect=0.1)
    gaps = 0.5 * (MODEL.score(x) - DATA.score(x)).square().sum(-1)
    assert_mean(gaps, divergence, detect=0.05)
    assert fisher_divergence(MODEL, DATA.score, x).mean == pytest.approx(gaps.mean().item())
    with pytest.raises(AssertionError, match="differs"):  # a trace counted half
        assert_mean(losses + 0.5 * torch.trace(MODEL.precision), loss, detect=0.1)


def test_loss_and_divergence_differ_by_a_constant_over_models(generator: torch.Generator) -> None:
    # L(a) - L(b) = J(a) - J(b): the difference of what depends on the model.
    x = DATA.sample(40_000, generator)
    loss = score_matching_losses(MODEL, x) - score_matching_losses(DATA, x)
    gap = 0.5 * (MODEL.score(x) - DATA.score(x)).square().sum(-1)
    assert_mean(loss - gap, 0.0, detect=0.1)


def test_losses_are_exact_one_point_at_a_time(network: MLPDensity) -> None:
    x = DATA.sample(7, torch.Generator().manual_seed(1))
    truth = oracles.score_matching(network, x).detach()
    torch.testing.assert_close(score_matching_losses(network, x), truth, rtol=ROUTES, atol=ROUTES)


def test_truth_has_no_divergence(generator: torch.Generator) -> None:
    x = DATA.sample(50, generator)
    assert fisher_divergence(DATA, DATA.score, x).mean < IDENTITY
    assert sliced_fisher_divergence(DATA, DATA.score, x, generator=generator).mean < IDENTITY


def test_all_signs_together_are_the_fisher_divergence(
    network: MLPDensity, generator: torch.Generator
) -> None:
    x = DATA.sample(9, generator)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=2)), dtype=torch.float64)
    sliced = sliced_fisher_divergence(network, DATA.score, x, Given(v=signs), num_projections=4)
    full = fisher_divergence(network, DATA.score, x)
    assert sliced.mean == pytest.approx(full.mean, rel=IDENTITY)
    assert sliced.standard_error == pytest.approx(full.standard_error, rel=IDENTITY)
    one = sliced_fisher_divergence(network, DATA.score, x, Given(v=signs[:1]))
    assert one.mean != pytest.approx(full.mean, rel=0.01)


@pytest.mark.parametrize("num", [1, 3])
def test_sliced_divergence_is_right_on_average(num: int, generator: torch.Generator) -> None:
    x = DATA.sample(20, generator)
    truth = fisher_divergence(MODEL, DATA.score, x).mean
    got = [
        sliced_fisher_divergence(
            MODEL, DATA.score, x, num_projections=num, generator=generator
        ).mean
        for _ in range(1500)
    ]
    assert_mean(torch.tensor(got, dtype=torch.float64), truth, detect=0.05 * truth)


def test_points_have_independent_directions_unless_asked_otherwise() -> None:
    # The standard error takes points to be independent, which balanced directions are not.
    x = DATA.sample(8, torch.Generator().manual_seed(1))

    def divergence(law: Projection | None) -> Estimate:
        generator = torch.Generator().manual_seed(2)
        return sliced_fisher_divergence(MODEL, DATA.score, x, law, generator=generator)

    assert divergence(None) == divergence(Rademacher(balanced=False))
    assert divergence(None) != divergence(Rademacher())


@pytest.mark.parametrize("batch_size", [1, 4, 13, 1000])
def test_batch_size_does_not_matter(network: MLPDensity, batch_size: int) -> None:
    x = DATA.sample(13, torch.Generator().manual_seed(1))

    def everything(size: int) -> list[float]:
        generator = torch.Generator().manual_seed(2)
        law = Rademacher()
        estimates = (
            score_matching_loss(network, x, batch_size=size),
            fisher_divergence(network, DATA.score, x, batch_size=size),
            sliced_fisher_divergence(network, DATA.score, x, law, 3, generator, size),
        )
        return [number for e in estimates for number in (e.mean, e.standard_error, e.count)]

    assert everything(batch_size) == pytest.approx(everything(5), rel=IDENTITY)


def test_images_and_score_networks_are_welcome(generator: torch.Generator) -> None:
    x = torch.randn(6, 2, 3, dtype=torch.float64, generator=generator)
    normal = VectorField(lambda x: -x)
    losses = 0.5 * x.square().flatten(1).sum(1) - 6
    torch.testing.assert_close(score_matching_losses(normal, x), losses)
    truth = 0.5 * x.square().flatten(1).sum(1).mean().item()
    assert fisher_divergence(normal, torch.zeros_like, x).mean == pytest.approx(truth)
    wide = sliced_fisher_divergence(normal, lambda x: 0 * x, x, num_projections=4)
    assert wide.count == 6


def test_leaves_everything_as_found(network: MLPDensity) -> None:
    x = DATA.sample(5, torch.Generator().manual_seed(1)).requires_grad_()
    state = torch.get_rng_state()
    losses = score_matching_losses(network, x)
    fisher_divergence(network, DATA.score, x)
    sliced_fisher_divergence(network, DATA.score, x, generator=torch.Generator().manual_seed(0))
    assert not losses.requires_grad and x.grad is None and x.requires_grad
    assert all(p.grad is None for p in network.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


# Estimates.


def test_estimate_is_mean_and_standard_error() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 9.0])
    got = Estimate.of(values)
    assert got == Estimate(4.0, math.sqrt(38 / 3 / 4), 4)
    assert math.isnan(Estimate.of(values[:1]).standard_error)


def test_estimate_of_single_precision_is_summed_in_double() -> None:
    # In float32 the sum of 2^25 ones stalls at 2^24 with naive addition; 0.1 shows any such loss.
    values = torch.full((1_000_001,), 0.1)
    assert Estimate.of(values).mean == pytest.approx(values[0].item(), rel=IDENTITY)


@pytest.mark.parametrize(
    "error, text",
    [
        (0.0419, "-3.21 +- 0.04 (n=159)"),
        (0.0123, "-3.214 +- 0.012 (n=159)"),
        (0.36, "-3.2 +- 0.4 (n=159)"),
        (0.34, "-3.21 +- 0.34 (n=159)"),
        (7.0, "-3 +- 7 (n=159)"),
        (65.0, "-3 +- 65 (n=159)"),
        (math.nan, "-3.2142 +- nan (n=159)"),
        (0.0, "-3.2142 +- 0.0000 (n=159)"),
    ],
)
def test_prints_the_digits_the_error_supports(error: float, text: str) -> None:
    assert str(Estimate(-3.2142, error, 159)) == text


def test_paired_difference_is_sharper_than_the_means(generator: torch.Generator) -> None:
    x = DATA.sample(2000, generator)
    better = Gaussian(mean=DATA.mean, covariance=MODEL.covariance)
    a, b = score_matching_losses(better, x), score_matching_losses(MODEL, x)
    difference = paired_difference(a, b)
    assert difference == Estimate.of(a - b)
    assert difference.mean + 5 * difference.standard_error < 0
    apart = math.hypot(Estimate.of(a).standard_error, Estimate.of(b).standard_error)
    assert difference.standard_error < apart
    assert paired_difference(b, a).mean == -difference.mean


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: score_matching_loss(MODEL, x, batch_size=0), ValueError, "batch_size must be"),
        (lambda x: score_matching_loss(MODEL, x[0]), ValueError, "x must have shape"),
        (lambda x: score_matching_loss(3, x), TypeError, "must be callable"),
        (lambda x: fisher_divergence(MODEL, MODEL, x), ValueError, "score must return one vector"),
        (lambda x: fisher_divergence(MODEL, lambda x: 1, x), ValueError, "got int; it is grad log"),
        (
            lambda x: paired_difference(x[:, 0], x[:1, 0]),
            ValueError,
            r"same points as a_losses \(5 of them",
        ),
        (lambda x: paired_difference(x, x), ValueError, r"a_losses must have shape \(N,\)"),
        (lambda x: paired_difference([1.0], [2.0]), TypeError, "a_losses must be a torch.Tensor"),
        (lambda x: Estimate.of(x[:0, 0]), ValueError, r"values must have shape \(N,\) with N >= 1"),
    ],
)
def test_says_what_is_wrong(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(DATA.sample(5))


def test_field_and_bare_model_are_the_same(network: MLPDensity) -> None:
    x = DATA.sample(5, torch.Generator().manual_seed(1))
    bare = score_matching_losses(network, x)
    assert torch.equal(bare, score_matching_losses(LogDensityField(network), x))
    # With gradients the trace may be summed in another order.
    torch.testing.assert_close(bare, ScoreMatching()(network, x).detach(), rtol=0, atol=IDENTITY)


def test_scores_of_data_may_change_their_points() -> None:
    """The model was evaluated at points that the score of the data had moved."""
    x = torch.zeros(4, 2, dtype=torch.float64)
    found = fisher_divergence(VectorField(lambda x: 5.0 - x), lambda x: -x.sub_(5.0), x)
    assert found.mean == 0.0 and not x.any()

"""Theorem 3 and Proposition 1 on the Gaussian: formulas against slow and obvious ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import scorematching as sm
from reproduction import nice
from reproduction.experiment import Job
from reproduction.theory import dequantise, gaussian, nce, variance
from scorematching.inference import fit
from tests.statistics import assert_mean

CPU = torch.device("cpu")


def signs() -> torch.Tensor:
    """All eight Rademacher directions, which have equal probabilities."""
    return torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)


@pytest.mark.parametrize("variance_reduced", [False, True])
@pytest.mark.parametrize("num", [1, 3])
def test_theory_is_the_sandwich_over_all_directions(variance_reduced: bool, num: int) -> None:
    """Gradients by autograd at points of a quadrature rule, variances over all directions."""
    weights, points = gaussian._quadrature()
    basis, theta = gaussian._basis(), gaussian.truth()

    def loss(parameters: torch.Tensor, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        precision = torch.einsum("p,pij->ij", parameters, basis)
        score = -precision @ x
        square = score.square().sum() if variance_reduced else (v @ score).square()
        return -v @ precision @ v + 0.5 * square

    over_directions = torch.func.vmap(torch.func.grad(loss), (None, None, 0))
    psi = torch.func.vmap(over_directions, (None, 0, None))(theta, points, signs())  # (Q, 8, P)
    mean = psi.mean(1)
    within = (psi - mean[:, None]).transpose(-1, -2) @ (psi - mean[:, None]) / 8
    spread = torch.einsum("q,qp,qr->pr", weights, mean, mean)
    spread = spread + torch.einsum("q,qpr->pr", weights, within) / num
    second = torch.func.vmap(torch.func.jacrev(torch.func.grad(loss)), (None, None, 0))
    second = torch.func.vmap(second, (None, 0, None))
    hessian = torch.einsum("q,qvpr->pr", weights, second(theta, points, signs())) / 8
    inverse = torch.linalg.inv(hessian)
    assert torch.allclose(gaussian.theory(variance_reduced, num), inverse @ spread @ inverse)


def test_the_rule_is_exact_for_the_moments_of_the_law() -> None:
    weights, x = gaussian._quadrature()
    covariance = torch.linalg.inv(gaussian.PRECISION)
    assert torch.allclose(torch.einsum("q,qi,qj->ij", weights, x, x), covariance)
    fourth = torch.einsum("q,qi,qj,qk,ql->ijkl", weights, x, x, x, x)
    pairs = [
        torch.einsum(f"{ab},{cd}->ijkl", covariance, covariance)
        for ab, cd in (("ij", "kl"), ("ik", "jl"), ("il", "jk"))
    ]
    assert torch.allclose(fourth, sum(pairs))


@pytest.mark.parametrize("name", gaussian.SLICED)
def test_the_covariance_of_a_fit_is_the_theorems(name: str) -> None:
    """The sandwich of one large data set; errors of its entries are near one percent."""
    generator = torch.Generator().manual_seed(0)
    objective = gaussian.SLICED[name](sm.Rademacher(balanced=False))
    found = fit(gaussian.model(), gaussian.draw(40_000, generator), objective, generator=generator)
    errors = np.array(list(found.bse.values())) * math.sqrt(40_000)
    expected = gaussian.theory(name == "SSM-VR", 1).diagonal().sqrt().numpy()
    assert np.allclose(errors, expected, rtol=0.05)


def test_the_ratio_and_its_error() -> None:
    """Of estimates with twice the spread of the others, in every parameter."""
    noise = torch.randn(4000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact, other = noise[:2000] + gaussian.truth(), 2 * noise[2000:] + gaussian.truth()
    ratio, error = variance.inflation(other, exact)
    assert abs(ratio - 4) < 4 * error and 0.02 < error < 0.1


def test_more_directions_add_less() -> None:
    added = [variance.predicted(False, m) - 1 for m in (1, 2, 4)]
    assert np.allclose(added, [added[0], added[0] / 2, added[0] / 4])
    assert variance.predicted(True, 1) < variance.predicted(False, 1)
    assert variance.predicted(False, math.inf) == 1


def test_noise_contrast_tends_to_half_of_sliced_score_matching(tmp_path: Path) -> None:
    """The factor is 1/2, with an error of the order of the squared shift; estimates agree."""
    found = [
        nce.run(nce.Config(eps=eps, points=400), Job("", 0, CPU, tmp_path)) for eps in (0.2, 0.1)
    ]
    off = [abs(metrics["factor"] - 0.5) for metrics in found]
    assert off[0] < 0.01 and 3 < off[0] / off[1] < 5
    assert 3 < found[0]["distance"] / found[1]["distance"] < 5


def edges(sharpness: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A log-density on [0, 1] that falls at both ends within 1 / sharpness."""
    falls = torch.nn.functional.logsigmoid
    return lambda x: (falls(sharpness * x) + falls(sharpness * (1 - x))).sum(1)


def test_a_density_that_jumps_has_no_least_loss() -> None:
    """By parts, the loss of uniform points tends to -(3/2 - log 2) k for edges of sharpness k."""
    x = ((torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000)[:, None]
    for sharpness in (30.0, 300.0, 3000.0):
        loss = sm.ScoreMatching()(edges(sharpness), x).mean().item()
        assert loss == pytest.approx(-(1.5 - math.log(2)) * sharpness, rel=1e-3)


def test_the_true_density_has_the_least_loss() -> None:
    """By quadrature in one cell of normal noise: minus half the mean square of the score."""
    levels = torch.zeros(1, 2, dtype=torch.float64)
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(9))
    points = dequantise.WIDTH * torch.cartesian_prod(nodes, nodes)
    weights = torch.outer(weights, weights).flatten() / weights.sum() ** 2

    def loss(scale: float) -> float:
        density = dequantise.mixture(levels)
        return (weights @ dequantise.exact_losses(lambda x: density(scale * x), points)).item()

    assert loss(1.0) == pytest.approx(-1 / dequantise.WIDTH**2)
    assert min(loss(0.9), loss(1.1)) > loss(1.0) + 0.1


def test_the_mixture_is_that_of_the_noisy_levels() -> None:
    """Scores, point by point, as the mean distance to the levels by their posterior."""
    levels = dequantise.draw(60, torch.Generator().manual_seed(0)).double()
    x = dequantise.normal(levels, torch.Generator().manual_seed(1))[:5]
    score = sm.LogDensityField(dequantise.mixture(levels)).score(x)
    for n in range(5):
        weights = torch.softmax(-0.5 * ((x[n] - levels) / 0.3).square().sum(1), 0)
        assert torch.allclose(score[n], weights @ (levels - x[n]) / 0.3**2)


@pytest.mark.parametrize("name", dequantise.NOISES)
def test_noise_is_fresh_and_keeps_levels(name: str) -> None:
    levels, g = dequantise.draw(40_000, torch.Generator().manual_seed(0)), torch.Generator()
    noise = dequantise.NOISES[name](levels, g.manual_seed(1)).double() - levels
    zeros = ((levels == 0) & (noise == 0)).double().mean() / (levels == 0).double().mean()
    assert zeros == pytest.approx(0.5 if name == "clipped" else 0.0, abs=0.02)
    inside = noise[levels > 0]
    assert_mean(inside, 0.5 if name == "uniform" else 0.0, detect=0.02)
    assert_mean(inside.square(), {"uniform": 1 / 3, "clipped": 1 / 12, "normal": 0.09}[name], 0.02)
    assert levels.min() == 0 and 0.55 < (levels == 0).double().mean() < 0.65


def test_smooth_pixels_have_normal_noise() -> None:
    """Around the logit of the centre of their grey level; none is clipped."""
    pixels = torch.tensor([0.0, 7 / 255, 1.0]).expand(40_000, 3)
    transform = nice.noise_of(nice.Config(pixels="smooth", spread=0.2))
    z = transform(pixels, torch.Generator().manual_seed(0)).double()
    centres = torch.logit((torch.tensor([0.0, 7.0, 255.0], dtype=torch.float64) + 0.5) / 256)
    noise = (z - centres).flatten() / 0.2
    assert_mean(noise, 0.0, detect=0.03)
    assert_mean(noise.square(), 1.0, detect=0.05)


EXPERIMENTS = [variance.EXPERIMENT, nce.EXPERIMENT, dequantise.EXPERIMENT]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_smoke(experiment, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    variant = next(iter(experiment.variants))
    metrics = experiment.run(
        experiment.settings(variant, {}, smoke=True), Job(variant, 0, CPU, tmp_path)
    )
    measured = [metrics[name] for name in experiment.columns if metrics[name] is not None]
    assert measured and all(map(math.isfinite, measured))

"""Theorem 3 and Proposition 1 on the Gaussian: formulas against slow and obvious ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import scorematching as sm
from reproduction.experiment import Job
from reproduction.theory import gaussian, nce, variance
from scorematching.inference import fit

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


@pytest.mark.parametrize("experiment", [variance.EXPERIMENT, nce.EXPERIMENT], ids=lambda e: e.name)
def test_smoke(experiment, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    variant = next(iter(experiment.variants))
    metrics = experiment.run(
        experiment.settings(variant, {}, smoke=True), Job(variant, 0, CPU, tmp_path)
    )
    assert all(math.isfinite(metrics[name]) for name in experiment.columns)

"""The surrogate's gradient is that of minus the entropy."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scorematching.distributions import GaussianMixture
from scorematching.entropy import entropy_surrogate, entropy_terms
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY


def white(count: int, dim: int) -> Tensor:
    """Noise of mean zero and covariance one exactly, as its expectations are."""
    g = torch.Generator().manual_seed(0)
    eps = torch.randn(count, dim, generator=g, dtype=torch.float64)
    eps = eps - eps.mean(0)
    return torch.linalg.solve_triangular(
        torch.linalg.cholesky(eps.T @ eps / count), eps.T, upper=False
    ).T


def rotation(angle: Tensor) -> Tensor:
    c, s = angle.cos(), angle.sin()
    return torch.stack([torch.stack([c, -s]), torch.stack([s, c])])


def push(eps: Tensor, log_scale: Tensor, angle: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Points ``R diag(scale) eps + shift`` and the matrix."""
    matrix = rotation(angle) * log_scale.exp()
    return eps @ matrix.T + shift, matrix


def parameters() -> list[Tensor]:
    values = ([0.7, -0.4], 0.6, [1.0, -2.0])
    return [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]


def gradients(surrogate: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]) -> list[Tensor]:
    """Of a normal law's surrogate in log-scales, angle and shift, with exact moments."""
    inputs = parameters()
    z, matrix = push(white(50, 2), *inputs)
    precision, mean = torch.linalg.inv(matrix @ matrix.T), inputs[-1]
    value = surrogate(z, lambda z: -(z - mean) @ precision)
    return list(torch.autograd.grad(value, inputs))


def is_minus_entropy(found: list[Tensor]) -> bool:
    """``-H = -sum(log_scale) + constant``, whatever the angle and the shift."""
    truth = [[-1.0, -1.0], 0.0, [0.0, 0.0]]
    return all(
        torch.allclose(g, torch.tensor(t, dtype=torch.float64), rtol=0, atol=IDENTITY)
        for g, t in zip(found, truth)
    )


def test_gradient_of_a_normal_law() -> None:
    assert is_minus_entropy(gradients(entropy_surrogate))


BUGS = {
    "plus the entropy": lambda z, s: -entropy_surrogate(z, s),
    "a score with its graph": lambda z, s: (s(z) * z).sum(-1).mean(),
    "a mean over coordinates": lambda z, s: (s(z).detach() * z).mean(),
    "a sum over points": lambda z, s: (s(z).detach() * z).sum(),
    "z without its graph": lambda z, s: (s(z) * z.detach()).sum(-1).mean(),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_rejected(bug: str) -> None:
    assert not is_minus_entropy(gradients(BUGS[bug]))


def test_gradient_of_a_scaled_mixture(generator: torch.Generator) -> None:
    """Of any shape of law: scaling by a adds D log a to the entropy, and a shift nothing."""
    means = torch.tensor([[-2.0, 0.0], [2.0, 1.0]], dtype=torch.float64)
    law = GaussianMixture([0.3, 0.7], means, covariances=[0.5, 1.5])
    eps = law.sample(40_000, generator=generator)
    log_a = torch.full((len(eps), 1), 0.3, dtype=torch.float64, requires_grad=True)
    shift = torch.zeros(len(eps), 2, dtype=torch.float64, requires_grad=True)
    z = log_a.exp() * eps + shift
    # For z = a eps + c the score is that of eps over a.
    value = entropy_terms(z, lambda z: law.score(z * math.exp(-0.3)) * math.exp(-0.3)).sum()
    of_scale, of_shift = torch.autograd.grad(value, [log_a, shift])
    assert_mean(of_scale[:, 0], -2.0, detect=0.15)
    assert_mean(of_shift, torch.zeros(2), detect=0.1)


def test_leading_axes_and_events() -> None:
    """M of each of N laws; and points that are images."""
    z = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4).requires_grad_()
    scores = z.detach().sin()
    terms = entropy_terms(z, scores)
    assert terms.shape == (2, 3)
    assert torch.allclose(terms, torch.einsum("nmd,nmd->nm", scores, z), rtol=IDENTITY)
    assert entropy_surrogate(z, scores).item() == pytest.approx(terms.mean().item(), rel=IDENTITY)
    images = entropy_terms(z, scores, event_axes=2)
    assert torch.allclose(images, terms.sum(1), rtol=IDENTITY)
    with pytest.raises(ValueError, match=r"must be less than .*, got 3 for shape \(2, 3"):
        entropy_terms(z, scores, event_axes=3)  # the sum over all points, not their mean
    (gradient,) = torch.autograd.grad(entropy_surrogate(z, scores), z)
    assert torch.allclose(gradient, scores / 6, rtol=IDENTITY)  # the scores, over all six points


def test_no_gradient_reaches_the_score() -> None:
    network = torch.nn.Linear(2, 2, dtype=torch.float64)
    z = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    for score in (network, network(z)):
        entropy_surrogate(z, score).backward()
        assert all(p.grad is None for p in network.parameters())
    assert z.requires_grad and z.is_leaf


@pytest.mark.parametrize(
    ("z", "score", "error", "message"),
    [
        (torch.ones(3, 2), torch.ones(3), ValueError, r"shape \(3, 2\), got \(3,\); it is the"),
        (torch.ones(3, 2), lambda z: z[:2], ValueError, r"got \(2, 2\)"),
        (torch.ones(3, 2), lambda z: None, ValueError, "got NoneType"),
        (torch.ones(3, 2), "stein", TypeError, "score must be a tensor or a function of z"),
        (torch.ones(3), torch.ones(3), ValueError, "z must have shape"),
        ([1.0], torch.ones(3), TypeError, "z must be a torch.Tensor"),
    ],
)
def test_bad_input(z: Tensor, score: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        entropy_surrogate(z, score)

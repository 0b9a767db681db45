"""Score-matching losses of tables whose outliers widen the space in which they are compared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from scorematching.datasets import Standardise
from scorematching.distributions import Gaussian, GaussianMixture
from scorematching.estimators.density.bases.given import Given
from scorematching.estimators.density.bases.transformed import Transformed
from scorematching.estimators.density.losses import held_out_losses
from scorematching.runs.held_out import model_losses
from scorematching.runs.space import Space


class Logistic:
    """``log p = -2 log cosh(s / 2)``, with score ``-tanh(s / 2)``, up to a constant."""

    def log_prob(self, s: Tensor) -> Tensor:
        return -2 * torch.cosh(s / 2).log().sum(-1)

    def sample(self, n: int) -> Tensor:
        return torch.zeros(n, 1)


def test_differences_are_as_small_as_the_rows() -> None:
    """In a space that is 1000 times wider they spanned all rows; the loss had another sign."""
    x = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)
    identity = Standardise(torch.zeros(1, dtype=x.dtype), torch.ones(1, dtype=x.dtype))
    wide = Gaussian(torch.zeros(1, dtype=x.dtype), torch.full((1, 1), 1e6, dtype=x.dtype))
    space = Space.of(["a"], Transformed(wide, identity))
    found = model_losses(SimpleNamespace(density_=Given(Logistic(), x)), space, x)
    score = -torch.tanh(x / 2).flatten()
    truth = 1e6 * (-0.5 * (1 - score.square()) + 0.5 * score.square())
    assert found.tolist() == pytest.approx(truth.tolist(), rel=1e-2)


def test_narrow_components_are_no_kinks(generator: torch.Generator) -> None:
    """The loss of kernel estimates and mixtures was refused where a code for missing is common."""
    eye = torch.eye(2, dtype=torch.float64)
    variances = torch.tensor([1e-6, 0.2], dtype=torch.float64)
    means = torch.tensor([[0.3, 0.0], [-3.0, 0.0]], dtype=torch.float64)
    mixture = GaussianMixture([0.9, 0.1], means, torch.stack([variances * eye] * 2))
    z = mixture.sample(24, generator)
    mean = means[(z[:, 0] < -1).long()]
    truth = (-1 / variances + 0.5 * ((z - mean) / variances).square()).sum(1)
    torch.testing.assert_close(held_out_losses(mixture, z), truth)

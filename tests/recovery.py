"""Fitting a Gaussian to samples of one, with standard errors.

An estimate minimises the mean of losses l(theta; x_i, noise_i) whose noise is drawn once. Its
asymptotic covariance is ``H^-1 V H^-1 / N``, V the covariance of the gradients of single losses and
H the Hessian of their mean, whatever the objective; the delta method carries it over to what is
compared with the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scorematching import Field, Objective
from tests.models_zoo import normal

DIM = 2
MEAN = torch.tensor([1.0, -0.5], dtype=torch.float64)
COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=torch.float64)


def gaussian_points(n: int, seed: int = 0) -> Tensor:
    """Points of N(MEAN, COVARIANCE), ``(n, 2)``."""
    noise = normal(n, DIM, generator=torch.Generator().manual_seed(seed))
    return MEAN + noise @ torch.linalg.cholesky(COVARIANCE).T


class GaussianModel(nn.Module):
    """A Gaussian by its mean and the Cholesky root of its precision, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(DIM, dtype=torch.float64))
        self.root = nn.Parameter(torch.eye(DIM, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        root = self.root.tril()
        normaliser = root.diagonal().abs().log().sum() - 0.5 * DIM * math.log(2 * math.pi)
        return normaliser - 0.5 * ((x - self.mean) @ root).square().sum(-1)

    def estimate(self) -> Tensor:
        """Mean and precision, ``(2 + 4,)``."""
        root = self.root.tril()
        return torch.cat([self.mean, (root @ root.T).flatten()])


class LinearScoreModel(nn.Module):
    """A score network of one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(DIM, DIM, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(DIM, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias

    def estimate(self) -> Tensor:
        """Bias and weight, ``(2 + 4,)``."""
        return torch.cat([self.bias, self.weight.flatten()])


def gaussian_truth(covariance: Tensor) -> Tensor:
    """What `GaussianModel.estimate` should be for data of a given covariance."""
    return torch.cat([MEAN, torch.linalg.inv(covariance).flatten()])


def score_truth() -> Tensor:
    """What `LinearScoreModel.estimate` should be: the score is ``-P (x - mean)``."""
    precision = torch.linalg.inv(COVARIANCE)
    return torch.cat([precision @ MEAN, -precision.flatten()])


@dataclass(frozen=True)
class Fit:
    """An estimate and its standard errors, ``(6,)`` each."""

    estimate: Tensor
    error: Tensor

    def deviations(self, truth: Tensor) -> Tensor:
        """How many standard errors the estimate is from a truth, ``(6,)``."""
        return (self.estimate - truth).abs() / self.error


def fit(
    objective: Objective,
    model: GaussianModel | LinearScoreModel,
    wrap: Callable[[nn.Module], Field],
    n: int = 20_000,
) -> Fit:
    """Minimise an objective on n points by LBFGS, its noise drawn once."""
    x = gaussian_points(n)
    parameters = list(model.parameters())
    optimiser = torch.optim.LBFGS(
        parameters,
        max_iter=100,
        tolerance_grad=1e-10,
        tolerance_change=1e-15,
        line_search_fn="strong_wolfe",
    )

    def losses() -> Tensor:
        noise = objective.draw(x, torch.Generator().manual_seed(1))  # the same at every call
        return objective.loss(wrap(model), x, noise)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = losses().mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    return Fit(model.estimate().detach(), _standard_errors(losses, model))


def _standard_errors(losses: Callable[[], Tensor], model: nn.Module) -> Tensor:
    """Sandwich covariance at the minimum, by central differences in the free parameters."""
    free = [(p, i) for p in model.parameters() for i in _free_entries(p, model)]
    gradients = torch.stack([_difference(losses, p, i) for p, i in free], dim=-1)  # (N, P)

    def mean_gradient() -> Tensor:
        found = torch.autograd.grad(losses().mean(), [p for p, _ in free])
        return torch.stack([g.flatten()[i] for g, (_, i) in zip(found, free, strict=True)])

    hessian = torch.stack([_difference(mean_gradient, p, i) for p, i in free])
    jacobian = torch.stack([_difference(model.estimate, p, i) for p, i in free], dim=-1)
    influence = jacobian @ torch.linalg.solve(hessian, gradients.T)  # (6, N)
    return influence.square().sum(-1).sqrt() / len(gradients)


def _free_entries(parameter: Tensor, model: nn.Module) -> list[int]:
    """Entries that the model uses: of a Cholesky root, the lower triangle."""
    if parameter is getattr(model, "root", None):
        return [i * DIM + j for i in range(DIM) for j in range(i + 1)]
    return list(range(parameter.numel()))


def _difference(f: Callable[[], Tensor], parameter: Tensor, index: int) -> Tensor:
    step, entries = 1e-5, parameter.data.view(-1)
    values = []
    for shift in (step, -2 * step):
        entries[index] += shift
        values.append(f().detach())
    entries[index] += step
    return (values[0] - values[1]) / (2 * step)

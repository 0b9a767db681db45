"""Distributions of torch, with their default checks of arguments and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributions as D
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, density


class Fitted(nn.Module):
    """A distribution made from free parameters, its log-density summed over the event."""

    def __init__(self, make: Callable[[Tensor, Tensor], D.Distribution], dim: int) -> None:
        super().__init__()
        self.make = make
        self.loc, self.scale = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        value = self.make(self.loc, self.scale.exp()).log_prob(x)
        return value.flatten(1).sum(-1) if value.ndim > 1 else value


def fitted(
    make: Callable[[Tensor, Tensor], Any], dim: int = 3, **options: Any
) -> Callable[[], Model]:
    return lambda: density(Fitted(make, dim), dim, num=8, **options)


def matrix(m: Tensor, s: Tensor) -> Tensor:
    return torch.diag(s) + 0.2 * torch.outer(s, s)


def mixture(m: Tensor, s: Tensor) -> D.Distribution:
    parts = D.Independent(D.Normal(torch.stack([m - 1, m + 1]), torch.stack([s, s])), 1)
    return D.MixtureSameFamily(D.Categorical(logits=m[:2]), parts)


def transformed(m: Tensor, s: Tensor) -> D.Distribution:
    parts = [D.transforms.TanhTransform(), D.transforms.AffineTransform(m, s + 1)]
    return D.TransformedDistribution(D.Normal(torch.zeros(3), torch.ones(3)), parts)


def positive(x: Tensor) -> Tensor:
    return x.exp() + 0.5


def interval(x: Tensor) -> Tensor:
    return 0.35 + 0.3 * torch.sigmoid(x)


class Posterior(nn.Module):
    """Logistic regression: the density of the weights given data."""

    def __init__(self) -> None:
        super().__init__()
        self.design = nn.Parameter(torch.randn(10, 3))

    def forward(self, x: Tensor) -> Tensor:
        labels = (torch.arange(10) % 2).to(x)
        likelihood = D.Bernoulli(logits=x @ self.design.T).log_prob(labels).sum(-1)
        return likelihood + D.Normal(0.0, 1.0).log_prob(x).sum(-1)


class Projected:
    """A Dirichlet distribution of positive numbers divided by their sum."""

    def __init__(self, concentration: Tensor) -> None:
        self.base = D.Dirichlet(concentration)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.base.log_prob(x / x.sum(-1, keepdim=True)) - x.sum(-1)


class Covariances(nn.Module):
    """A Wishart distribution of 2 by 2 matrices, in the entries of their Cholesky factors."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 1.5]))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = x.unbind(-1)
        rows = [torch.stack([a.exp(), 0 * a], -1), torch.stack([c, b.exp()], -1)]
        factor = torch.stack(rows, -2)
        wishart = D.Wishart(torch.tensor(4.0), torch.diag(self.scale.square()))
        return wishart.log_prob(factor @ factor.mT) + a + b


def torch_entry(name: str, build: Callable[[], Model], *rest: Any) -> Entry:
    return Entry("distributions", name, build, *rest)


ENTRIES = [
    torch_entry("Normal", fitted(D.Normal)),
    torch_entry("StudentT", fitted(lambda m, s: D.StudentT(4.0, m, s))),
    torch_entry("Cauchy", fitted(D.Cauchy)),
    torch_entry("Gumbel", fitted(D.Gumbel)),
    torch_entry("VonMises", fitted(D.VonMises)),
    torch_entry("Laplace", fitted(D.Laplace), "kinked", "the score jumps at the mode"),
    torch_entry("Gamma", fitted(lambda m, s: D.Gamma(s + 1, s), points=positive)),
    torch_entry("LogNormal", fitted(D.LogNormal, points=positive)),
    torch_entry("Weibull", fitted(lambda m, s: D.Weibull(s, s + 1), points=positive)),
    torch_entry("Beta", fitted(lambda m, s: D.Beta(s + 1, s + 2), points=interval)),
    torch_entry("Kumaraswamy", fitted(lambda m, s: D.Kumaraswamy(s + 1, s + 1), points=interval)),
    torch_entry("Dirichlet", fitted(lambda m, s: Projected(s + 1), points=positive)),
    torch_entry(
        "MultivariateNormal, covariance",
        fitted(lambda m, s: D.MultivariateNormal(m, covariance_matrix=matrix(m, s))),
    ),
    torch_entry(
        "MultivariateNormal, precision",
        fitted(lambda m, s: D.MultivariateNormal(m, precision_matrix=matrix(m, s))),
    ),
    torch_entry(
        "LowRankMultivariateNormal",
        fitted(lambda m, s: D.LowRankMultivariateNormal(m, s[:, None], s)),
    ),
    torch_entry("MixtureSameFamily", fitted(mixture)),
    torch_entry("TransformedDistribution, tanh", fitted(transformed, points=lambda x: 0.3 * x)),
    torch_entry("logistic regression posterior", lambda: density(Posterior(), 3)),
    torch_entry("Wishart", lambda: density(Covariances(), 3)),
]

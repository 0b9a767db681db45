"""Transforms and distributions of pyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import transforms as T
from pyro.nn import AutoRegressiveNN
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, density
from tests.zoo.libraries.torch_distributions import fitted


class Flow(nn.Module):
    """Standard normal latents, ``z = T(x)``; a copy of x empties pyro's cache."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for layer in self.layers:
            start = x.clone()
            x = layer(start)
            change = layer.log_abs_det_jacobian(start, x)
            total = total + (change.sum(-1) if change.ndim > 1 else change)
        return total + dist.Normal(0.0, 1.0).log_prob(x).sum(-1)


class Sampled(nn.Module):
    """The usual way round, `TransformedDistribution`, which inverts the transforms."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        base = dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1)
        return dist.TransformedDistribution(base, list(self.layers)).log_prob(x.clone())


def flow(*makers: Callable[[], Any], wrap: Any = Flow, stir: float = 0.1) -> Callable[[], Model]:
    return lambda: density(wrap(*(make() for make in makers)), 3, num=8, stir=stir)


def affine(act: nn.Module) -> Callable[[], Any]:
    return lambda: T.AffineAutoregressive(AutoRegressiveNN(3, [8], nonlinearity=act))


def mixture(loc: Tensor, scale: Tensor) -> Any:
    places = torch.stack([loc - 1, loc + 1])
    return dist.MixtureOfDiagNormals(places, torch.ones(2, 3) * scale, torch.tensor([0.3, -0.2]))


def student(loc: Tensor, scale: Tensor) -> Any:
    return dist.MultivariateStudentT(torch.tensor(4.0), loc, torch.diag(scale) + 0.1)


class Sequences(nn.Module):
    """A linear Gaussian state space model of four steps with two observed coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.move, self.see = nn.Parameter(0.5 * torch.eye(2)), nn.Parameter(torch.eye(2))

    def forward(self, x: Tensor) -> Tensor:
        noise = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        start = dist.MultivariateNormal(torch.zeros(2), torch.eye(2))
        hmm = dist.GaussianHMM(start, self.move, noise, self.see, noise, duration=4)
        return hmm.log_prob(x)


SPLINE = "splines: the derivative of log|det| jumps at knots"
ENTRIES = [
    Entry("pyro", "affine autoregressive, tanh", flow(affine(nn.Tanh()))),
    Entry("pyro", "affine autoregressive, inverted", flow(affine(nn.Tanh()), wrap=Sampled)),
    Entry("pyro", "affine autoregressive, ReLU", flow(affine(nn.ReLU())), "kinked", "ReLU"),
    Entry("pyro", "planar", flow(lambda: T.planar(3), lambda: T.planar(3))),
    Entry("pyro", "radial", flow(lambda: T.radial(3), lambda: T.radial(3))),
    Entry("pyro", "Sylvester", flow(lambda: T.sylvester(3))),
    Entry("pyro", "Householder and planar", flow(lambda: T.householder(3), lambda: T.planar(3))),
    Entry("pyro", "matrix exponential", flow(lambda: T.matrix_exponential(3), lambda: T.planar(3))),
    Entry("pyro", "block autoregressive", flow(lambda: T.block_autoregressive(3))),
    Entry(
        "pyro",
        "neural autoregressive, tanh",
        flow(
            lambda: T.NeuralAutoregressive(
                AutoRegressiveNN(3, [8], param_dims=[4] * 3, nonlinearity=nn.Tanh()), hidden_units=4
            )
        ),
    ),
    Entry("pyro", "polynomial, ReLU hypernetwork", flow(lambda: T.polynomial(3)), "kinked", "ReLU"),
    Entry("pyro", "rational spline", flow(lambda: T.spline(3), stir=2.0), "kinked", SPLINE),
    Entry("pyro", "MultivariateStudentT", fitted(student)),
    Entry("pyro", "SoftLaplace", fitted(dist.SoftLaplace)),
    Entry(
        "pyro",
        "AsymmetricLaplace",
        fitted(lambda m, s: dist.AsymmetricLaplace(m, s, torch.tensor(1.5)), stir=1.0),
        "kinked",
        "the score jumps at the mode",
    ),
    Entry("pyro", "MixtureOfDiagNormals", fitted(mixture)),
    Entry("pyro", "Logistic", fitted(dist.Logistic)),
    Entry("pyro", "GaussianHMM", lambda: density(Sequences(), 4, 2)),
]

"""The models that are timed: plain modules, the same for all libraries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class Mlp(nn.Module):
    """A log-density by a network of softplus units, ``(N, D) -> (N,)``."""

    def __init__(self, dim: int, width: int, layers: int = 3) -> None:
        super().__init__()
        self.net = softplus_net([dim, *[width] * layers, 1])

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant."""
        return self.net(x).squeeze(-1)


class ScoreNet(nn.Module):
    """A score by a network of softplus units, ``(N, D) -> (N, D)``."""

    def __init__(self, dim: int, width: int, layers: int = 3) -> None:
        super().__init__()
        self.net = softplus_net([dim, *[width] * layers, dim])

    def forward(self, x: Tensor) -> Tensor:
        """The score."""
        return self.net(x)


class Flow(nn.Module):
    """Additive couplings, a scale and a standard normal (NICE), ``(N, D) -> (N,)``."""

    def __init__(self, dim: int, width: int, layers: int, couplings: int = 4) -> None:
        super().__init__()
        half = dim // 2
        nets = [softplus_net([half, *[width] * layers, half]) for _ in range(couplings)]
        self.shifts = nn.ModuleList(nets)
        self.log_scale = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant."""
        a, b = x[:, 0::2], x[:, 1::2]
        for shift in self.shifts:
            a, b = b + shift(a), a
        y = torch.cat([a, b], dim=-1) * self.log_scale.exp()
        return self.log_scale.sum() - 0.5 * y.square().sum(-1)


class KernelMixture(nn.Module):
    """Weighted Gaussian kernels of learned features (as in DKEF), ``(N, D) -> (N,)``."""

    def __init__(self, dim: int, width: int, inducing: int, kernels: int = 3) -> None:
        super().__init__()
        shapes = [[dim, width, width, width]] * kernels
        self.features = nn.ModuleList(softplus_net(shape) for shape in shapes)
        self.skips = nn.ModuleList(nn.Linear(dim, width, bias=False) for _ in shapes)
        self.inducing = nn.Parameter(torch.randn(inducing, dim))
        self.log_variance = nn.Parameter(torch.linspace(0.0, 2.3, kernels))
        self.alpha = nn.Parameter(torch.randn(inducing) / inducing)

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant."""
        total: Any = 0.0
        for net, skip, scale in zip(self.features, self.skips, self.log_variance.exp()):
            a, b = net(x) + skip(x), net(self.inducing) + skip(self.inducing)
            norms = a.square().sum(-1, keepdim=True) + b.square().sum(-1)
            total = total + torch.exp((a @ b.T - 0.5 * norms) / scale)
        return total @ self.alpha - x.square().sum(-1) / 8


class Conv(nn.Module):
    """A small convolutional log-density of images, ``(N, 1, S, S) -> (N,)``."""

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        features = 2 * channels * (size // 4) ** 2
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1),
            nn.Softplus(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.Softplus(),
            nn.Flatten(),
            nn.Linear(features, 128),
            nn.Softplus(),
            nn.Linear(128, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant."""
        return self.net(x).squeeze(-1)


class Normal(nn.Module):
    """A centred Gaussian log-density of given precision, ``(N, D) -> (N,)``."""

    def __init__(self, precision: Tensor) -> None:
        super().__init__()
        self.precision = nn.Parameter(precision)

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant."""
        return -0.5 * ((x @ self.precision) * x).sum(-1)


@dataclass(frozen=True)
class Case:
    """A model to time, and the shape of its batch.

    Attributes:
        name: short name.
        about: description.
        build: class of the model.
        sizes: arguments of the class.
        event: shape of one point.
        batch: number of points.
        vector: whether it is a score network.
        exact: batch size for exact score matching; zero for none.
        more: factor for the number of rounds, for models with short steps.
    """

    name: str
    about: str
    build: type[nn.Module]
    sizes: dict[str, Any]
    event: tuple[int, ...]
    batch: int = 128
    vector: bool = False
    exact: int = 0
    more: int = 1

    def make(self, seed: int, device: str) -> tuple[nn.Module, Tensor]:
        """The model and a batch, the same for the same seed; the global state is restored."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build(**self.sizes)
            x = torch.randn(self.batch, *self.event)
        return model.to(device), x.to(device)


def softplus_net(widths: list[int]) -> nn.Sequential:
    """Linear layers of the given widths with softplus between them."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Softplus()] if i else []
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


CASES = (
    Case("mlp100", "MLP 3x256, D=100", Mlp, {"dim": 100, "width": 256}, (100,), exact=128, more=8),
    Case("mlp784", "MLP 3x256, D=784", Mlp, {"dim": 784, "width": 256}, (784,), exact=128, more=4),
    Case(
        "scorenet",
        "score network 3x256, D=100",
        ScoreNet,
        {"dim": 100, "width": 256},
        (100,),
        vector=True,
        more=3,
    ),
    Case(
        "flow",
        "additive couplings 4 x (3x256), D=784 (the paper's are 4 x (5x1000))",
        Flow,
        {"dim": 784, "width": 256, "layers": 3},
        (784,),
    ),
    Case(
        "kernels",
        "3 kernels of 30 features, 200 inducing points, D=15",
        KernelMixture,
        {"dim": 15, "width": 30, "inducing": 200},
        (15,),
        more=3,
    ),
    Case("conv", "2 convolutions, 1x28x28", Conv, {"size": 28, "channels": 16}, (1, 28, 28)),
)

QUICK_CASES = (
    Case("mlp100", "MLP 3x8, D=6", Mlp, {"dim": 6, "width": 8}, (6,), batch=8, exact=8),
    Case("mlp784", "MLP 3x8, D=9", Mlp, {"dim": 9, "width": 8}, (9,), batch=8, exact=8),
    Case(
        "scorenet",
        "score network 3x8, D=6",
        ScoreNet,
        {"dim": 6, "width": 8},
        (6,),
        batch=8,
        vector=True,
    ),
    Case(
        "flow",
        "additive couplings 4 x (1x8), D=6",
        Flow,
        {"dim": 6, "width": 8, "layers": 1},
        (6,),
        batch=8,
    ),
    Case(
        "kernels",
        "3 kernels of 4 features, 10 inducing points, D=3",
        KernelMixture,
        {"dim": 3, "width": 4, "inducing": 10},
        (3,),
        batch=8,
    ),
    Case("conv", "2 convolutions, 1x8x8", Conv, {"size": 8, "channels": 2}, (1, 8, 8), batch=8),
)

PAPER_FLOW = {"dim": 784, "width": 1000, "layers": 5}
"""The flow of Song et al. (2019), Section 6.1: four couplings with five hidden layers of 1000."""

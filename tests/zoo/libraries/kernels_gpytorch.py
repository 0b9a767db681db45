"""Kernels and predictions of gpytorch as log-densities."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import torch
from gpytorch import kernels
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, density


class KernelDensity(nn.Module):
    """The logarithm of a sum of kernels with free centres."""

    def __init__(self, kernel: kernels.Kernel) -> None:
        super().__init__()
        self.kernel, self.centres = kernel, nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        values = self.kernel(x, self.centres).to_dense()
        return values.sum(-1).square().add(1e-3).log() - 0.1 * x.square().sum(-1)


class Exact(gpytorch.models.ExactGP):
    """A Gaussian process with a few observations."""

    def __init__(self) -> None:
        inputs = torch.randn(5, 2)
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        super().__init__(inputs, inputs.sin().sum(-1), likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = kernels.ScaleKernel(kernels.RBFKernel())

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


class PosteriorMean(nn.Module):
    """The posterior mean of a Gaussian process as a log-density, each point by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.process = Exact().eval()

    def forward(self, x: Tensor) -> Tensor:
        self.process.prediction_strategy = None  # a cache of solutions for old parameters
        with gpytorch.settings.detach_test_caches(False):
            mean = self.process(x[:, None]).mean
        return mean.squeeze(-1) - 0.5 * x.square().sum(-1)


class FeatureNet(nn.Module):
    """A deep kernel: a network before a kernel."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 6), act, nn.Linear(6, 2))
        self.density = KernelDensity(kernels.RBFKernel())

    def forward(self, x: Tensor) -> Tensor:
        return self.density(self.net(x)) - 0.5 * x.square().sum(-1)


def of(make: Callable[[], kernels.Kernel]) -> Callable[[], Model]:
    return lambda: density(KernelDensity(make()), 2)


ENTRIES = [
    Entry("gpytorch", "RBF kernel", of(kernels.RBFKernel)),
    Entry(
        "gpytorch",
        "RBF kernel, scaled, ARD",
        of(lambda: kernels.ScaleKernel(kernels.RBFKernel(ard_num_dims=2))),
    ),
    Entry("gpytorch", "rational quadratic kernel", of(kernels.RQKernel)),
    Entry("gpytorch", "Matern 5/2 kernel", of(lambda: kernels.MaternKernel(2.5))),
    Entry("gpytorch", "periodic kernel", of(kernels.PeriodicKernel)),
    Entry(
        "gpytorch",
        "cosine and polynomial kernels",
        of(lambda: kernels.RBFKernel() + kernels.PolynomialKernel(2)),
    ),
    Entry(
        "gpytorch",
        "spectral mixture kernel",
        of(lambda: kernels.SpectralMixtureKernel(2, ard_num_dims=2)),
    ),
    Entry("gpytorch", "deep kernel, tanh", lambda: density(FeatureNet(nn.Tanh()), 2)),
    Entry(
        "gpytorch",
        "deep kernel, ReLU",
        lambda: density(FeatureNet(nn.ReLU()), 2, num=8),
        "kinked",
        "ReLU",
    ),
    Entry("gpytorch", "posterior mean", lambda: density(PosteriorMean(), 2)),
]

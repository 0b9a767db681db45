"""Normalising flows of normflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import normflows as nf
import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, density, log_prob


def of(*layers: Callable[[], Any], dim: int = 2, stir: float = 0.1) -> Callable[[], Model]:
    """A flow from a list of layers to a Gaussian with parameters."""

    def build() -> Model:
        flow = nf.NormalizingFlow(nf.distributions.DiagGaussian(dim), [make() for make in layers])
        return density(log_prob(flow), dim, num=8, stir=stir)

    return build


def tanh_net(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def coupling(net: Callable[[int, int], nn.Module] = tanh_net, **options: Any) -> Callable[[], Any]:
    return lambda: nf.flows.AffineCouplingBlock(net(1, 2), **options)


def masked() -> nn.Module:
    return nf.flows.MaskedAffineFlow(torch.tensor([1.0, 0.0]), tanh_net(2, 2), tanh_net(2, 2))


def relu_net(inputs: int, outputs: int) -> nn.Module:
    return nf.nets.MLP([inputs, 8, outputs])


def autoregressive(act: Any) -> Callable[[], nn.Module]:
    return lambda: nf.flows.MaskedAffineAutoregressive(2, 8, num_blocks=1, activation=act)


def spline() -> nn.Module:
    return nf.flows.CoupledRationalQuadraticSpline(2, 1, 8, num_bins=4, activation=nn.Tanh)


def permutation() -> nn.Module:
    return nf.flows.Permute(2, mode="swap")


class Reversed(nn.Module):
    """A flow without an inverse, in its forward direction."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers, self.base = nn.ModuleList(layers), nf.distributions.DiagGaussian(2)

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, change = layer(x)
            total = total + change
        return total + self.base.log_prob(x)


def reversed_of(kind: Callable[..., nn.Module], **options: Any) -> Callable[[], Model]:
    return lambda: density(Reversed([kind((2,), **options) for _ in range(2)]), 2)


def residual() -> Model:
    net = nf.nets.LipschitzMLP([2, 8, 2], init_zeros=False)
    flow = nf.flows.Residual(net, reduce_memory=False, brute_force=True)
    whole = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), [flow]).eval()
    return density(log_prob(whole), 2)


def glow() -> Model:
    block = nf.flows.GlowBlock(4, 8)
    flow = nf.NormalizingFlow(nf.distributions.DiagGaussian((4, 2, 2)), [block])
    flow.log_prob(torch.randn(8, 4, 2, 2))
    return density(log_prob(flow), 4, 2, 2)


def distribution(make: Callable[[], nn.Module], dim: int = 2) -> Callable[[], Model]:
    return lambda: density(log_prob(make()), dim)


SPLINE = "rational-quadratic splines: the derivative of log|det| jumps at knots"
ENTRIES = [
    Entry("normflows", "affine coupling, exp", of(coupling(), permutation, coupling())),
    Entry(
        "normflows",
        "affine coupling, sigmoid",
        of(coupling(scale_map="sigmoid"), permutation, coupling(scale_map="sigmoid_inv")),
    ),
    Entry(
        "normflows",
        "additive coupling",
        of(lambda: nf.flows.AffineCouplingBlock(tanh_net(1, 1), scale=False), permutation),
    ),
    Entry(
        "normflows",
        "affine coupling, ReLU MLP",
        of(coupling(relu_net), permutation, coupling(relu_net)),
        "kinked",
        "ReLU",
    ),
    Entry("normflows", "masked affine", of(masked, permutation, masked)),
    Entry("normflows", "masked autoregressive, tanh", of(autoregressive(torch.tanh))),
    Entry(
        "normflows",
        "masked autoregressive, ELU",
        of(autoregressive(nn.functional.elu), stir=2.0),
        "kinked",
        "ELU",
    ),
    Entry("normflows", "rational-quadratic coupling", of(spline, stir=1.0), "kinked", SPLINE),
    Entry("normflows", "planar, tanh", reversed_of(nf.flows.Planar)),
    Entry(
        "normflows",
        "planar, leaky ReLU",
        reversed_of(nf.flows.Planar, act="leaky_relu"),
        "kinked",
        "LeakyReLU",
    ),
    Entry("normflows", "radial", reversed_of(nf.flows.Radial)),
    Entry(
        "normflows",
        "LU and ActNorm",
        of(lambda: nf.flows.LULinearPermute(2), lambda: nf.flows.ActNorm(2), coupling()),
    ),
    Entry("normflows", "invertible affine", of(lambda: nf.flows.InvertibleAffine(2), coupling())),
    Entry("normflows", "residual, brute force", residual),
    Entry("normflows", "Glow block", glow, "kinked", "ReLU"),
    Entry(
        "normflows",
        "Gaussian mixture",
        distribution(lambda: nf.distributions.GaussianMixture(3, 2)),
    ),
    Entry("normflows", "Gaussian PCA", distribution(lambda: nf.distributions.GaussianPCA(3, 2), 3)),
]

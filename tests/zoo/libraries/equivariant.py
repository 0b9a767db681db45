"""Equivariant layers of e3nn and image operations of kornia."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import kornia
import torch
from e3nn import nn as enn
from e3nn import o3
from torch import Tensor, nn

from tests.zoo.entry import Energy, Entry, Model, density, energy, vector


class Harmonics(nn.Module):
    """Spherical harmonics of a point, multiplied with it by a tensor product."""

    def __init__(self) -> None:
        super().__init__()
        self.harmonics = o3.SphericalHarmonics("0e + 1o + 2e", normalize=True)
        self.product = o3.FullyConnectedTensorProduct("1o", "0e + 1o + 2e", "3x0e + 2x1o")

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.harmonics(x))


class Gated(nn.Module):
    """Linear layers with gates between them."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate = enn.Gate("2x0e", [act], "2x0e", [torch.sigmoid], "2x1o")
        self.first = o3.Linear("1x0e + 2x1o", self.gate.irreps_in)
        self.last = o3.Linear(self.gate.irreps_out, "2x0e")
        self.square = o3.TensorSquare("2x1o", "1x0e")

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.square(x), x], -1)
        return self.last(self.gate(self.first(h)))


def sphere() -> nn.Module:
    irreps = o3.Irreps("0e + 1o + 2e")
    return nn.Sequential(o3.Linear(irreps, irreps), enn.S2Activation(irreps, torch.tanh, 6))


class Images(nn.Module):
    """A kornia operation after a convolution."""

    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.operation = nn.Conv2d(1, 2, 3, padding=1), operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(torch.tanh(self.conv(x)))


def images(operation: Callable[[Tensor], Tensor]) -> Callable[[], Model]:
    return lambda: density(Energy(Images(operation)), 1, 6, 6, num=4)


class Rotations(nn.Module):
    """The density of axis-angle vectors by the rotation matrices they stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        rotation = kornia.geometry.axis_angle_to_rotation_matrix(x)
        return (rotation * self.mode).sum((-1, -2)) - 0.5 * x.square().sum(-1)


BLUR = partial(
    kornia.filters.bilateral_blur, kernel_size=3, sigma_color=0.5, sigma_space=(1.0, 1.0)
)
ENTRIES = [
    Entry("e3nn", "harmonics and tensor product", lambda: energy(Harmonics(), 3)),
    Entry("e3nn", "gates, SiLU", lambda: energy(Gated(nn.functional.silu), 6)),
    Entry("e3nn", "gates, ReLU", lambda: energy(Gated(torch.relu), 6, num=12), "kinked", "ReLU"),
    Entry("e3nn", "linear field", lambda: vector(o3.Linear("2x1o", "2x1o"), 6)),
    Entry(
        "e3nn",
        "activation on the sphere",
        lambda: energy(sphere(), 9),
    ),
    Entry(
        "e3nn",
        "FullyConnectedNet",
        lambda: energy(enn.FullyConnectedNet([3, 8, 2], torch.nn.functional.silu), 3),
    ),
    Entry(
        "kornia",
        "Gaussian blur",
        images(lambda x: kornia.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0))),
    ),
    Entry("kornia", "Sobel", images(kornia.filters.sobel)),
    Entry("kornia", "soft argmax", images(kornia.geometry.spatial_soft_argmax2d)),
    Entry("kornia", "bilateral blur, L2", images(partial(BLUR, color_distance_type="l2"))),
    Entry("kornia", "bilateral blur, L1", images(BLUR), "kinked", "absolute differences"),
    Entry(
        "kornia",
        "median blur",
        images(lambda x: kornia.filters.median_blur(x, (3, 3))),
        "kinked",
        "a median",
    ),
    Entry("kornia", "SSIM", images(lambda x: kornia.metrics.ssim(x, torch.full_like(x, 0.5), 3))),
    Entry("kornia", "axis-angle rotations", lambda: density(Rotations(), 3)),
]

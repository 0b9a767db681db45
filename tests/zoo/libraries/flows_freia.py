"""Invertible networks of FrEIA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from FrEIA import framework, modules
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, Through, density


def normal(network: nn.Module) -> nn.Module:
    """Log-density of an invertible network with standard normal latents."""
    return Through(network, log_density)


def log_density(network: nn.Module, x: Tensor) -> Tensor:
    z, log_det = network(x)
    return log_det - 0.5 * z.flatten(1).square().sum(-1)


def subnet(act: Callable[[], nn.Module]) -> Callable[[int, int], nn.Module]:
    return lambda a, b: nn.Sequential(nn.Linear(a, 8), act(), nn.Linear(8, b))


def blocks(
    kind: Any,
    act: Callable[[], nn.Module] | None = nn.SiLU,
    event: tuple[int, ...] = (4,),
    **options: Any,
) -> Callable[[], Model]:
    if act is not None:
        options["subnet_constructor"] = subnet(act)

    def build() -> Model:
        network = framework.SequenceINN(*event)
        for _ in range(2):
            network.append(kind, **options)
        return density(normal(network), *event, num=8)

    return build


def images() -> Model:
    network = framework.SequenceINN(1, 4, 4)
    network.append(modules.HaarDownsampling)
    network.append(
        modules.GLOWCouplingBlock,
        subnet_constructor=lambda a, b: nn.Sequential(
            nn.Conv2d(a, 4, 1), nn.SiLU(), nn.Conv2d(4, b, 1)
        ),
    )
    network.append(modules.Flatten)
    return density(normal(network), 1, 4, 4)


def graph() -> Model:
    start = framework.InputNode(4, name="x")
    coupled = framework.Node(
        start, modules.RNVPCouplingBlock, {"subnet_constructor": subnet(nn.Tanh)}
    )
    mixed = framework.Node(coupled, modules.PermuteRandom, {"seed": 0})
    end = framework.OutputNode(mixed)
    return density(normal(framework.GraphINN([start, coupled, mixed, end])), 4)


ENTRIES = [
    Entry("FrEIA", "AllInOneBlock, SiLU", blocks(modules.AllInOneBlock)),
    Entry(
        "FrEIA",
        "AllInOneBlock, learned Householder",
        blocks(modules.AllInOneBlock, learned_householder_permutation=2),
    ),
    Entry("FrEIA", "AllInOneBlock, ReLU", blocks(modules.AllInOneBlock, nn.ReLU), "kinked", "ReLU"),
    Entry("FrEIA", "GLOW coupling, GELU", blocks(modules.GLOWCouplingBlock, nn.GELU)),
    Entry(
        "FrEIA",
        "GLOW coupling, tanh clamp",
        blocks(modules.GLOWCouplingBlock, clamp_activation="TANH"),
    ),
    Entry("FrEIA", "RNVP coupling, softplus", blocks(modules.RNVPCouplingBlock, nn.Softplus)),
    Entry("FrEIA", "GIN coupling, tanh", blocks(modules.GINCouplingBlock, nn.Tanh)),
    Entry("FrEIA", "NICE coupling, Mish", blocks(modules.NICECouplingBlock, nn.Mish)),
    Entry(
        "FrEIA",
        "NICE coupling, LeakyReLU",
        blocks(modules.NICECouplingBlock, nn.LeakyReLU),
        "kinked",
        "LeakyReLU",
    ),
    Entry(
        "FrEIA",
        "one-sided coupling, sigmoid clamp",
        blocks(modules.AffineCouplingOneSided, clamp_activation=torch.sigmoid),
    ),
    Entry("FrEIA", "Haar wavelets and convolutions", images),
    Entry("FrEIA", "graph network", graph),
]

"""Normalising flows of zuko."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zuko
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, Through, density, vector


def log_density(flow: nn.Module, x: Tensor) -> Tensor:
    return flow().log_prob(x)


def flow(
    kind: Callable[..., nn.Module], dim: int = 3, stir: float = 0.1, **options: Any
) -> Callable[[], Model]:
    options = {"hidden_features": (8,), "activation": nn.Tanh, "transforms": 2} | options
    options = {key: value for key, value in options.items() if value is not None}

    def build() -> Model:
        return density(Through(kind(dim, **options), log_density), dim, num=8, stir=stir)

    return build


def field(**options: Any) -> Callable[[], Model]:
    """The vector field that a continuous flow integrates."""

    def build() -> Model:
        net = zuko.nn.MLP(3, 3, hidden_features=(8, 8), **options)
        return vector(net, 3)

    return build


F = zuko.flows
SPLINE = "rational-quadratic splines: the derivative of log|det| jumps at knots"
SOFTCLIP = "the soft clip between transforms has log|det| = -2 log(1 + |x| / 11)"
WEAK = "the second derivative of its soft clip a / (1 + |a| / 6.9) of log-scales jumps"
ONCE = "its integral is an autograd function that is marked as differentiable once"
TANH = {"activation": nn.Tanh}
ENTRIES = [
    Entry("zuko", "MAF, tanh", flow(F.MAF), "borderline", WEAK),
    Entry("zuko", "MAF, SiLU", flow(F.MAF, activation=nn.SiLU, transforms=3), "borderline", WEAK),
    Entry(
        "zuko",
        "MAF, softplus, 6 inputs",
        flow(F.MAF, 6, activation=nn.Softplus),
        "borderline",
        WEAK,
    ),
    Entry("zuko", "MAF, ReLU", flow(F.MAF, activation=nn.ReLU), "kinked", "ReLU"),
    Entry("zuko", "MAF, ELU", flow(F.MAF, activation=nn.ELU), "kinked", "ELU"),
    Entry("zuko", "NICE, tanh", flow(F.NICE), "borderline", WEAK),
    Entry("zuko", "NICE, ELU", flow(F.NICE, activation=nn.ELU), "kinked", "ELU"),
    Entry("zuko", "RealNVP, SiLU", flow(F.RealNVP, activation=nn.SiLU), "borderline", WEAK),
    Entry("zuko", "NSF, tanh", flow(F.NSF), "kinked", SPLINE),
    Entry("zuko", "NCSF, tanh", flow(F.NCSF), "kinked", SPLINE),
    Entry("zuko", "SOSPF, one transform, tanh", flow(F.SOSPF, transforms=1), "opaque", ONCE),
    Entry("zuko", "SOSPF, tanh", flow(F.SOSPF), "kinked", SOFTCLIP),
    Entry("zuko", "BPF, tanh", flow(F.BPF, transforms=1)),
    Entry("zuko", "GF, tanh", flow(F.GF, components=3)),
    Entry("zuko", "NAF, tanh", flow(F.NAF, transforms=1, signal=4), "kinked", "two-way ELU"),
    Entry("zuko", "UNAF, tanh", flow(F.UNAF, transforms=1, signal=4, network=TANH), "opaque", ONCE),
    Entry("zuko", "UNAF, ELU", flow(F.UNAF, transforms=1, signal=4, stir=1.0), "kinked", "ELU"),
    Entry(
        "zuko", "CNF, tanh", flow(F.CNF, 2, transforms=None, atol=1e-8, rtol=1e-7), "opaque", ONCE
    ),
    Entry("zuko", "GMM", flow(F.GMM, transforms=None, components=3)),
    Entry("zuko", "MLP field, SiLU", field(activation=nn.SiLU)),
    Entry(
        "zuko", "MLP field, ELU", field(activation=nn.ELU), why="ELU is smooth enough for a field"
    ),
    Entry("zuko", "MLP field, ReLU", field(activation=nn.ReLU), "kinked", "ReLU"),
    Entry("zuko", "MLP field, LayerNorm", field(activation=nn.SiLU, normalize=True)),
]

"""Normalising flows of nflows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from nflows import distributions as D
from nflows import flows
from nflows import transforms as T
from nflows.nn.nets import MLP, ResidualNet
from torch import nn

from tests.zoo.entry import Entry, Model, density, log_prob, vector

MASK = torch.tensor([1.0, -1.0, 1.0])


def of(*layers: Callable[[], Any], dim: int = 3, stir: float = 0.1) -> Callable[[], Model]:
    """A flow from a list of transforms to the standard normal."""

    def build() -> Model:
        transform = T.CompositeTransform([layer() for layer in layers])
        return density(
            log_prob(flows.Flow(transform, D.StandardNormal([dim]))), dim, num=8, stir=stir
        )

    return build


def net(act: Any) -> Callable[[int, int], nn.Module]:
    return lambda inputs, outputs: ResidualNet(
        inputs, outputs, hidden_features=8, num_blocks=1, activation=act
    )


def coupling(kind: Any, act: Any = torch.tanh, **options: Any) -> Callable[[], Any]:
    return lambda: kind(MASK, net(act), **options)


def spline(kind: Any, **options: Any) -> Callable[[], Any]:
    return coupling(kind, num_bins=4, tails="linear", tail_bound=3.0, **options)


def whole(kind: Any, stir: float = 0.1, **options: Any) -> Callable[[], Model]:
    return lambda: density(log_prob(kind(3, 8, 2, 1, **options)), 3, num=8, stir=stir)


def squeezed() -> Model:
    layers = [T.SqueezeTransform(), T.OneByOneConvolution(4), T.ActNorm(4)]
    flow = flows.Flow(T.CompositeTransform(layers), D.StandardNormal([4, 2, 2]))
    return density(log_prob(flow.eval()), 1, 4, 4)


def mixture() -> Model:
    made = D.MADEMoG(3, 8, None, 1, 3, activation=torch.tanh)
    return density(log_prob(made), 3)


def mlp_field() -> Model:
    return vector(MLP([3], [3], [8, 8], activation=nn.functional.gelu), 3)


SPLINE = "the derivative of log|det| jumps at knots"
MAF = flows.MaskedAutoregressiveFlow
affine = partial(T.MaskedAffineAutoregressiveTransform, 3, 8, num_blocks=1)
ENTRIES = [
    Entry("nflows", "SimpleRealNVP, tanh", whole(flows.SimpleRealNVP, activation=torch.tanh)),
    Entry("nflows", "SimpleRealNVP, ReLU", whole(flows.SimpleRealNVP), "kinked", "ReLU"),
    Entry(
        "nflows",
        "SimpleRealNVP, batch norm",
        whole(flows.SimpleRealNVP, activation=torch.tanh, batch_norm_between_layers=True),
        "coupled",
        "batch normalisation in training mode",
    ),
    Entry(
        "nflows",
        "NICE, GELU",
        whole(flows.SimpleRealNVP, activation=nn.functional.gelu, use_volume_preserving=True),
    ),
    Entry("nflows", "MAF, SiLU", whole(MAF, activation=nn.functional.silu)),
    Entry("nflows", "MAF, ELU", whole(MAF, 1.0, activation=nn.functional.elu), "kinked", "ELU"),
    Entry(
        "nflows",
        "affine autoregressive and LU",
        of(
            partial(affine, activation=torch.tanh),
            partial(T.LULinear, 3),
            partial(T.ReversePermutation, 3),
            partial(affine, activation=torch.tanh),
        ),
    ),
    Entry(
        "nflows",
        "affine coupling and QR",
        of(coupling(T.AffineCouplingTransform), partial(T.QRLinear, 3, 2)),
    ),
    Entry(
        "nflows",
        "additive coupling and SVD",
        of(coupling(T.AdditiveCouplingTransform), partial(T.SVDLinear, 3, 2)),
    ),
    Entry(
        "nflows",
        "Householder and sigmoid",
        of(partial(T.HouseholderSequence, 3, 2), partial(T.Sigmoid), partial(T.Logit)),
    ),
    Entry(
        "nflows",
        "rational-quadratic coupling",
        of(spline(T.PiecewiseRationalQuadraticCouplingTransform), stir=1.0),
        "kinked",
        SPLINE,
    ),
    Entry(
        "nflows",
        "quadratic coupling",
        of(spline(T.PiecewiseQuadraticCouplingTransform), stir=1.0),
        "kinked",
        SPLINE,
    ),
    Entry(
        "nflows",
        "rational-quadratic CDF",
        of(
            lambda: T.PiecewiseRationalQuadraticCDF([3], 6, tails="linear", tail_bound=3.0),
            stir=1.0,
        ),
        "kinked",
        SPLINE,
    ),
    Entry(
        "nflows",
        "LeakyReLU layer",
        of(partial(T.LULinear, 3), T.LeakyReLU, partial(T.LULinear, 3)),
        "kinked",
        "LeakyReLU",
    ),
    Entry("nflows", "squeeze, 1x1 convolution, ActNorm", squeezed),
    Entry("nflows", "MADE with Gaussian mixtures", mixture),
    Entry("nflows", "MLP field, GELU", mlp_field),
]

"""Models whose smoothness is known, for the measurement of smoothness.

The order of a model is -1 where its score jumps, 0 where the derivative of its score jumps, 1 where
neither does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Laplace, MixtureSameFamily
from torch.nn import functional as F

Model = Callable[[Tensor], Tensor]
KNOTS = torch.tensor([-2.5, -1.0, -0.2, 0.7, 1.4, 2.5])
IMAGE = torch.arange(16.0).sin().reshape(1, 1, 4, 4)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n: int, d: int, seed: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, generator=generator(seed), dtype=torch.float64).to(dtype)


def random_(module: nn.Module, seed: int = 0) -> nn.Module:
    """A module whose parameters come from a generator of their own."""
    g = generator(seed)
    for p in module.parameters():
        size = p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5
        p.data = size * torch.randn(p.shape, generator=g)
    return module


LAYER = random_(nn.Linear(3, 32))
NET = random_(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
DEEP = [random_(nn.Linear(3, 16), 1), random_(nn.Linear(16, 16), 2)]
NORM = random_(nn.LayerNorm(16))
RNN = random_(nn.RNN(3, 4, nonlinearity="relu", batch_first=True))
GRU = random_(nn.GRU(3, 4, batch_first=True))
HEADS = random_(nn.MultiheadAttention(4, 2, batch_first=True))
EMBED = random_(nn.Linear(1, 4))
MODULES = [LAYER, NET, *DEEP, NORM, RNN, GRU, HEADS, EMBED]


def net(x: Tensor) -> Tensor:
    return NET(x).squeeze(-1)


def linear(act: Model) -> Model:
    """One hidden layer and a Gaussian, whose smoothness is that of the activation."""
    return lambda x: act(1.7 * LAYER(x)).sum(-1) - 0.5 * x.square().sum(-1)


def deep(act: Model, norm: Model = lambda h: h) -> Model:
    return lambda x: act(norm(DEEP[1](act(norm(DEEP[0](x)))))).sum(-1)


def attention(x: Tensor) -> Tensor:
    h = EMBED(x[..., None])
    return HEADS(h, h, h, need_weights=False)[0].square().flatten(1).sum(-1)


def log_sum_exp(x: Tensor, shift: Tensor) -> Tensor:
    return (x - shift).exp().sum(-1).log() + shift.squeeze(-1)


def softmax_by_hand(x: Tensor) -> Tensor:
    e = torch.exp(x - x.max(-1, keepdim=True)[0])
    return (e / e.sum(-1, keepdim=True) * x).sum(-1)


def rational_quadratic(x: Tensor) -> Tensor:
    """Standard normal pulled through monotone rational-quadratic splines, which are C1."""
    knots = KNOTS.to(x)
    slopes = torch.tensor([1.0, 0.4, 2.0, 0.7, 1.5, 1.0]).to(x)
    k = torch.bucketize(x.detach().clamp(-2.4, 2.4), knots) - 1
    w, rise = knots.diff()[k], torch.tensor([1.2, 1.1, 0.6, 1.0, 1.1]).to(x)[k]
    t, a, b, s = (x - knots[k]) / w, slopes[k], slopes[k + 1], rise / w
    below = s + (a + b - 2 * s) * t * (1 - t)
    y = rise * (s * t * t + a * t * (1 - t)) / below
    up = s * s * (b * t * t + 2 * s * t * (1 - t) + a * (1 - t) ** 2) / below**2
    return (up.log() - 0.5 * (y + rise.detach()) ** 2).sum(-1)


def grid_sample(x: Tensor) -> Tensor:
    image = IMAGE.to(x).expand(len(x), 1, 4, 4)
    return F.grid_sample(image, x[:, None, None, :2].tanh(), align_corners=True).flatten()


def interpolated(x: Tensor) -> Tensor:
    return torch.tensor([0.0, 1.0, -1.0, 2.0]).to(x)[torch.bucketize(x, KNOTS[1:4].to(x))].mul(x)


def mixture(x: Tensor) -> Tensor:
    parts = torch.distributions.Normal(torch.tensor([-1.0, 0.5]).to(x), torch.ones(2).to(x))
    which = torch.distributions.Categorical(torch.ones(2).to(x))
    return MixtureSameFamily(which, parts).log_prob(x).sum(-1)


SMOOTH: dict[str, Model] = {
    "softplus": linear(F.softplus),
    "silu": linear(F.silu),
    "gelu": linear(F.gelu),
    "mish": linear(F.mish),
    "tanh": linear(torch.tanh),
    "log sigmoid": linear(F.logsigmoid),
    "sin(10 h)": linear(lambda h: torch.sin(10 * h)),
    "sin(100 h)": linear(lambda h: torch.sin(100 * h)),
    "softplus 20": linear(lambda h: F.softplus(h, 20)),
    "softplus 50": linear(lambda h: F.softplus(h, 50)),
    "softplus 1000": linear(lambda h: F.softplus(h, 1000)),
    "relu^3": linear(lambda h: F.relu(h) ** 3),
    "relu^3 alone": lambda x: F.relu(net(x)) ** 3,
    "|h|^3": linear(lambda h: h.abs() ** 3),
    "|h|^2": linear(lambda h: h.abs() ** 2),
    "where of cubes": lambda x: torch.where(x < 0, x**3, -(x**3)).sum(-1),
    "deep softplus": deep(F.softplus),
    "deep layer norm": deep(F.silu, lambda h: F.layer_norm(h, (16,))),
    "layer norm module": deep(torch.tanh, NORM),
    "gru": lambda x: GRU(x[:, None])[0].flatten(1).sum(-1),
    "attention": attention,
    "mixture": mixture,
    "linear": lambda x: x.sum(-1),
    "constant": lambda x: torch.zeros(len(x)).to(x),
    "normal": lambda x: -0.5 * x.square().sum(-1),
    "norm away from zero": lambda x: -(x + 9).norm(dim=-1),
    "log-sum-exp by hand": lambda x: log_sum_exp(x, x.max(-1, keepdim=True).values),
    "log-sum-exp, shift detached": lambda x: log_sum_exp(x, x.detach().amax(-1, keepdim=True)),
    "log-sum-exp, amax": lambda x: log_sum_exp(x, x.amax(-1, keepdim=True)),
    "softmax by hand": softmax_by_hand,
    "softplus by hand": lambda x: (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))).sum(-1),
    "log cosh by hand": lambda x: -(x.abs() + torch.log1p(torch.exp(-2 * x.abs()))).sum(-1),
    "cos(x % 2 pi)": lambda x: torch.cos(x % (2 * math.pi)).sum(-1),
    "wrapped angle": lambda x: torch.cos((x + math.pi) % (2 * math.pi) - math.pi).sum(-1),
    "clamp never active": lambda x: -0.5 * (x.square() * torch.exp(-NET(x).clamp(-30, 20))).sum(-1),
    "clamp(min=1e-6) never active": lambda x: F.softplus(net(x)).clamp(min=1e-6).log(),
    "norm clamp_min": lambda x: net(x / x.norm(dim=-1, keepdim=True).clamp_min(1e-8)),
    "log|exp|": lambda x: x.exp().abs().log().sum(-1) - 0.5 * x.square().sum(-1),
    "sqrt(x^2 + eps)": lambda x: (x * x + 1e-3).sqrt().sum(-1),
    "x tanh(5x)": lambda x: -(x * torch.tanh(5 * x)).sum(-1),
    "maximum never active": lambda x: torch.maximum(x.exp(), torch.zeros(()).to(x)).sum(-1),
    "where of a constant mask": lambda x: torch.where(
        torch.tensor([True, False, True]), x.sin(), x.cos()
    ).sum(-1),
    "pad": lambda x: F.pad(x, (1, 1)).sin().sum(-1),
    "relu of x detached": lambda x: net(x) + torch.relu(x.detach()).sum(-1),
    "relu times zero": lambda x: net(x) + 0.0 * torch.relu(x).sum(-1),
    "relu of parameters": lambda x: net(x) - sum(p.abs().sum() for p in NET.parameters()),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x[:, :, None] * x[:, None].sin()).sum(-1),
}

BENT: dict[str, Model] = {
    "elu": linear(F.elu),
    "celu": linear(F.celu),
    "softsign": linear(F.softsign),
    "relu^2": linear(lambda h: F.relu(h) ** 2),
    "relu^2 alone": lambda x: F.relu(net(x)) ** 2,
    "huber": lambda x: -F.huber_loss(x, torch.zeros_like(x), reduction="none").sum(-1),
    "huber by hand": lambda x: -torch.where(x.abs() < 1, 0.5 * x * x, x.abs() - 0.5).sum(-1),
    "|x|^1.5": lambda x: -((x**2) ** 0.75).sum(-1),
    "deep elu": deep(F.elu),
    "deep elu, layer norm": deep(F.elu, NORM),
}

KINKED: dict[str, Model] = {
    "relu": linear(F.relu),
    "leaky_relu": linear(partial(F.leaky_relu, negative_slope=0.1)),
    "selu": linear(F.selu),
    "relu6": linear(F.relu6),
    "hardtanh": linear(F.hardtanh),
    "hardswish": linear(F.hardswish),
    "hardsigmoid": linear(F.hardsigmoid),
    "softshrink": linear(F.softshrink),
    "hardshrink": linear(F.hardshrink),
    "abs": linear(torch.abs),
    "clamp": linear(lambda h: h.clamp(-0.5, 0.9)),
    "maximum": linear(lambda h: torch.maximum(h, 0.3 * h.flip(-1))),
    "relu in place": linear(lambda h: (h + 0).relu_()),
    "deep relu": deep(F.relu),
    "deep relu, layer norm": deep(F.relu, NORM),
    "leaky by where": lambda x: torch.where(net(x) > 0, net(x), 0.01 * net(x)),
    "mask by comparison": lambda x: net(x) * (net(x) > 0),
    "step": lambda x: ((x > 0).to(x) * x.cos()).sum(-1),
    "norm p=1": lambda x: -x.norm(p=1, dim=-1),
    "norm p=inf": lambda x: -x.norm(p=float("inf"), dim=-1),
    "norm of one coordinate": lambda x: -x[:, :1].norm(dim=-1) - 0.5 * x.square().sum(-1),
    "sqrt(square)": lambda x: -(x * x).sqrt().sum(-1),
    "power 1/2 of square": lambda x: -((x**2) ** 0.5).sum(-1),
    "x sign(x)": lambda x: -(x * x.sign()).sum(-1),
    "x - floor(x)": lambda x: (x - x.floor()).sum(-1),
    "floor": lambda x: x.floor().sum(-1),
    "log|net|": lambda x: net(x).abs().log(),
    "Laplace": lambda x: Laplace(torch.zeros(3).to(x), 1.0).log_prob(x).sum(-1),
    "rnn_relu": lambda x: RNN(x[:, None])[0].flatten(1).sum(-1),
    "grid_sample": grid_sample,
    "bucketize": lambda x: interpolated(x).sum(-1),
    "rational-quadratic spline": rational_quadratic,
    "quantile": lambda x: x.quantile(0.5, dim=-1),
    "median": lambda x: x.median(-1).values,
    "cummax": lambda x: x.cummax(-1).values.sin().sum(-1),
    "sort": lambda x: x.sort(-1).values[:, 0],
    "max_pool": lambda x: F.max_pool1d(LAYER(x)[:, None], 4).flatten(1).sum(-1),
    "relu after sum(axis=)": lambda x: torch.relu(
        LAYER(x) / (1 + x.square().sum(axis=-1)[:, None])
    ).sum(-1),
    "relu after to": lambda x: torch.relu(LAYER(x * torch.ones(3).to(x))).sum(-1),
    "threshold": linear(lambda h: F.threshold(h, 0.2, 0.0)),
}

FIELDS: dict[str, tuple[Model, int]] = {
    "tanh network": (lambda x: torch.tanh(LAYER(x))[:, :3], 1),
    "relu network": (lambda x: torch.relu(LAYER(x))[:, :3], 0),
    "relu^2 network": (lambda x: torch.relu(LAYER(x))[:, :3] ** 2, 1),
    "elu network": (lambda x: F.elu(LAYER(x))[:, :3], 1),
    "step": (lambda x: -x.sign(), -1),
    "step and slope": (lambda x: -x - 0.1 * (x > 0.3).to(x), -1),
    "constant": (lambda x: torch.ones_like(x), 1),
    "gradient of a relu network": (
        lambda x: torch.autograd.grad(linear(F.relu)(x).sum(), x, create_graph=True)[0],
        -1,
    ),
}

TABLE = [
    *(("log-density", name, model, 1) for name, model in SMOOTH.items()),
    *(("log-density", name, model, 0) for name, model in BENT.items()),
    *(("log-density", name, model, -1) for name, model in KINKED.items()),
    *(("vector field", name, model, order) for name, (model, order) in FIELDS.items()),
]

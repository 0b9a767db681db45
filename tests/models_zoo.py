"""Small float64 models with seeded parameters, and points to ask them at.

A model that torch differentiates wrongly, or not at all, more than once has a second method,
`written_out`: the same function of the same parameters in operations that torch gets right.
Oracles use that one, see `trusted`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scorematching import Field, LogDensityField, VectorField


@dataclass(frozen=True)
class Case:
    """A model, the shape of its points, and what kind of field it is."""

    name: str
    build: Callable[[], nn.Module]
    event: tuple[int, ...]
    wrap: Callable[..., Field] = LogDensityField
    route: str = "auto"

    def module(self, seed: int = 0) -> nn.Module:
        """A fresh module, all parameters drawn from a seeded generator."""
        with torch.random.fork_rng():  # constructors draw from torch's default generator
            module = self.build().double()
        generator = torch.Generator().manual_seed(seed)
        for parameter in module.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
            parameter.data = normal(*parameter.shape, generator=generator) / fan_in**0.5
        return module

    def points(self, n: int = 3, seed: int = 1) -> Tensor:
        """Standard normal points ``(n, *event)``."""
        return normal(n, *self.event, generator=torch.Generator().manual_seed(seed))

    def field(self, model: Callable[[Tensor], Tensor]) -> Field:
        """A model as a field of this kind, whose derivatives take this case's route."""
        return self.wrap(model, route=self.route)

    def make(self, n: int = 3) -> tuple[nn.Module, Field, Tensor]:
        """A module, its field and n points."""
        module = self.module()
        return module, self.field(module), self.points(n)

    @property
    def is_density(self) -> bool:
        """Whether the model is a log-density."""
        return isinstance(self.wrap, type) and issubclass(self.wrap, LogDensityField)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def trusted(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model in operations that torch differentiates rightly any number of times."""
    return getattr(module, "written_out", module)


# Log-densities.


class Mlp(nn.Module):
    """Two hidden layers, ``(N, D) -> (N,)``, or ``(N, F)`` for several outputs."""

    def __init__(self, dim: int, outputs: int | None = None) -> None:
        super().__init__()
        widths = nn.Linear(dim, 6), nn.Tanh(), nn.Linear(6, 5), nn.Softplus()
        self.net = nn.Sequential(*widths, nn.Linear(5, outputs or 1))
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x) - 0.25 * x.square().sum(-1, keepdim=True)
        return y if self.outputs else y.squeeze(-1)


class Funnelled(nn.Module):
    """Fewer hidden units than coordinates, and no other way in for x, ``(N, D) -> (N,)``.

    All curvature is in the row space of the first layer.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 2), nn.Tanh(), nn.Linear(2, 3), nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).square().sum(-1)


class Conv(nn.Module):
    """A convolutional log-density, ``(N, C, H, W) -> (N,)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.first(x))
        return self.second(hidden).tanh().flatten(1).sum(1) - 0.1 * x.square().flatten(1).sum(1)


class Normed(nn.Module):
    """A log-density with a layer norm inside, ``(N, D) -> (N,)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, 5)
        self.norm = nn.LayerNorm(5)
        self.outer = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self._head(self.norm(self.inner(x)))

    def written_out(self, x: Tensor) -> Tensor:
        return self._head(standardise(self.inner(x)) * self.norm.weight + self.norm.bias)

    def _head(self, y: Tensor) -> Tensor:
        return self.outer(F.softplus(y)).squeeze(-1)


class InstanceNormed(nn.Module):
    """A log-density of images with an instance norm inside, ``(N, C, H, W) -> (N,)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, 2, 1)
        self.norm = nn.InstanceNorm2d(2, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self._head(self.norm(self.inner(x)))

    def written_out(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        y = y - y.mean((2, 3), keepdim=True)
        y = y / (y.square().mean((2, 3), keepdim=True) + self.norm.eps).sqrt()
        return self._head(y * self.norm.weight[:, None, None] + self.norm.bias[:, None, None])

    def _head(self, y: Tensor) -> Tensor:
        return F.softplus(y).square().flatten(1).sum(1)


class Through(nn.Module):
    """A log-density through one operation on rows of four numbers, ``(N, D) -> (N,)``.

    Args:
        dim: D.
        operation: the operation, ``(N, 4) -> (N, K)``.
        by_hand: the same in additions, products and square roots.
    """

    def __init__(
        self,
        dim: int,
        operation: Callable[[Tensor], Tensor],
        by_hand: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, 4)
        self.operation = operation
        self.by_hand = by_hand

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(self.inner(x)).exp().sum(-1)

    def written_out(self, x: Tensor) -> Tensor:
        return self.by_hand(self.inner(x)).exp().sum(-1)


def standardise(y: Tensor) -> Tensor:
    """Rows of mean zero and variance one, by hand."""
    y = y - y.mean(-1, keepdim=True)
    return y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def cosine(y: Tensor) -> Tensor:
    """The cosine of the angle between y and sin y, by hand, ``(N, 4) -> (N, 1)``."""
    z = y.sin()
    product = (y * z).sum(-1, keepdim=True)
    return product / (y.square().sum(-1, keepdim=True) * z.square().sum(-1, keepdim=True)).sqrt()


class MultiheadAttention(nn.Module):
    """A log-density of sequences through `nn.MultiheadAttention`, ``(N, T, E) -> (N,)``."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, 4)
        self.attention = nn.MultiheadAttention(4, num_heads=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self._log_density(x, need_weights=False)

    def written_out(self, x: Tensor) -> Tensor:
        # Asked for its weights, the module multiplies its matrices one by one.
        return self._log_density(x, need_weights=True)

    def _log_density(self, x: Tensor, need_weights: bool) -> Tensor:
        y = self.embed(x)
        y, _ = self.attention(y, y, y, need_weights=need_weights)
        return y.square().flatten(1).sum(1) - 0.5 * x.square().flatten(1).sum(1)


class FusedAttention(nn.Module):
    """The same through `scaled_dot_product_attention`, ``(N, T, E) -> (N,)``."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.project = nn.Linear(features, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self._log_density(x, F.scaled_dot_product_attention)

    def written_out(self, x: Tensor) -> Tensor:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

        return self._log_density(x, attend)

    def _log_density(self, x: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        y = attend(*self.project(x).chunk(3, dim=-1))
        return y.sin().flatten(1).sum(1) - 0.5 * x.square().flatten(1).sum(1)


class Linear(nn.Module):
    """``w.x``, which has no curvature, ``(N, D) -> (N,)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Quadratic(nn.Module):
    """``-0.5 (x - mu)' A (x - mu)`` on all coordinates of an event, A symmetric: ``-> (N,)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.empty(dim))
        self.root = nn.Parameter(torch.empty(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        centred = x.flatten(1) - self.mu
        return -0.5 * (centred @ (self.root + self.root.T) * centred).sum(-1)


# Score networks.


class NormedScore(nn.Module):
    """A score network with a layer norm inside, ``(N, D) -> (N, D)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, 5)
        self.norm = nn.LayerNorm(5)
        self.outer = nn.Linear(5, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.norm(self.inner(x)).tanh())

    def written_out(self, x: Tensor) -> Tensor:
        y = standardise(self.inner(x))
        return self.outer((y * self.norm.weight + self.norm.bias).tanh())


class MlpScore(nn.Module):
    """A score network that is the gradient of nothing, ``(N, D) -> (N, D)``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 6), nn.Tanh(), nn.Linear(6, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) - 0.5 * x


class ConvScore(nn.Module):
    """A convolutional score network, ``(N, C, H, W) -> (N, C, H, W)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 3, 3, padding=1)
        self.second = nn.Conv2d(3, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.softplus(self.first(x))) - x


class LinearScore(nn.Module):
    """``W x + b`` on all coordinates of an event."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)).reshape(x.shape)


class ConditionalScore(nn.Module):
    """A score network given a context, ``(N, D), (N, C) -> (N, D)``."""

    def __init__(self, dim: int, context_dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + context_dim, 6), nn.Tanh(), nn.Linear(6, dim))

    def forward(self, z: Tensor, context: Tensor) -> Tensor:
        return self.net(torch.cat([z, context], dim=-1))


MLP = Case("mlp", partial(Mlp, 3), (3,))
WIDE = Case("wide", partial(Funnelled, 4), (4,))
CONV = Case("conv", partial(Conv, 1), (1, 2, 3))
LAYER_NORM = Case("layer_norm", partial(Normed, 3), (3,))
INSTANCE_NORM = Case("instance_norm", partial(InstanceNormed, 1), (1, 2, 2))
MULTIHEAD = Case("multihead_attention", partial(MultiheadAttention, 2), (3, 2))
FUSED = Case("fused_attention", partial(FusedAttention, 2), (3, 2))
LINEAR = Case("linear", partial(Linear, 3), (3,))
QUADRATIC = Case("quadratic", partial(Quadratic, 3), (3,))
QUADRATIC_IMAGE = Case("quadratic_image", partial(Quadratic, 4), (1, 2, 2))
MLP_SCORE = Case("mlp_score", partial(MlpScore, 3), (3,), VectorField)
CONV_SCORE = Case("conv_score", partial(ConvScore, 1), (1, 2, 2), VectorField)
NORMED_SCORE = Case("normed_score", partial(NormedScore, 3), (3,), VectorField)
LINEAR_SCORE = Case("linear_score", partial(LinearScore, 3), (3,), VectorField)
LINEAR_SCORE_IMAGE = Case("linear_score_image", partial(LinearScore, 4), (1, 2, 2), VectorField)

DENSITIES = [MLP, WIDE, CONV, LAYER_NORM, INSTANCE_NORM, MULTIHEAD, FUSED, LINEAR, QUADRATIC]
SCORES = [MLP_SCORE, CONV_SCORE, NORMED_SCORE, LINEAR_SCORE]
DIFFICULT = [
    Case(f"through_{name}", partial(Through, 3, operation, by_hand), (3,))
    for name, operation, by_hand in (
        (
            "group_norm",
            lambda y: F.group_norm(y, 2),
            lambda y: standardise(y.unflatten(-1, (2, 2))).flatten(1),
        ),
        ("torch_layer_norm", lambda y: torch.layer_norm(y, (4,)), standardise),
        (
            "native_layer_norm",
            lambda y: torch.native_layer_norm(y, (4,), None, None, 1e-5)[0],
            standardise,
        ),
        (
            "torch_instance_norm",
            lambda y: torch.instance_norm(
                y[:, None], None, None, None, None, True, 0.1, 1e-5, False
            ).squeeze(1),
            standardise,
        ),
        (
            "cosine_similarity",
            lambda y: F.cosine_similarity(y, y.sin(), dim=-1)[:, None],
            cosine,
        ),
    )
]
"""Operations that torch differentiates wrongly, or not at all, one way or the other."""
POLYNOMIALS = [QUADRATIC, QUADRATIC_IMAGE, LINEAR_SCORE, LINEAR_SCORE_IMAGE]
"""Where second-order designs and central differences are exact."""


def name(case: Case) -> str:
    """The id of a parametrised test."""
    return case.name if case.route == "auto" else f"{case.name}-{case.route}"


def both_routes(cases: Sequence[Case]) -> list[Case]:
    """Every case by both ways of taking derivatives."""
    return [replace(case, route=route) for case in cases for route in ("traced", "reverse")]

"""Ways to write a model: one small function for each operation and habit that tracing must follow.

A way is ``op(z, p)``: z are points ``(N, *event)`` already bent a little, so that they have a
second derivative of their own, p is a `Bank` of parameters, and the result, of any shape
``(N, ...)``, is bent once more and summed to a log-density. Batches of N = 3 = D points tell an
operation that confuses its axes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models_zoo import normal


class Bank(nn.Module):
    """Parameters and modules, made when first asked for and the same ever after."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.ParameterDict()
        self.networks = nn.ModuleDict()

    def __call__(self, *shape: int, k: int = 0) -> Tensor:
        """The k-th parameter of a shape."""
        key = "x".join(map(str, shape)) + f"_{k}"
        if key not in self.numbers:
            self.numbers[key] = nn.Parameter(0.6 * normal(*shape, generator=_seeded(key)))
        return self.numbers[key]

    def net(self, key: str, build: Callable[[], nn.Module]) -> Any:
        """A module with parameters of its own."""
        if key not in self.networks:
            with torch.random.fork_rng():  # constructors draw from torch's default generator
                module = build().double()
            for i, parameter in enumerate(module.parameters()):
                fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
                numbers = normal(*parameter.shape, generator=_seeded(f"{key}{i}"))
                parameter.data = numbers / fan_in**0.5
            self.networks[key] = module
        return self.networks[key]


def _seeded(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(key.encode()))


Op = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Way:
    """A way to write a model, and what tracing should make of it."""

    name: str
    op: Op
    event: tuple[int, ...] = (3,)
    traced: bool | None = True
    """Whether it must be traced, must not be, or (None) may be either."""
    bent: bool = True
    """Whether the result is bent once more, for which the batch axis must be known."""
    kinked: bool = False
    written_out: Op | None = None
    """The same function where torch's own derivatives of it are wrong or missing."""

    def density(self, bank: Bank) -> Callable[[Tensor], Tensor]:
        """The log-density around the operation, ``(N, *event) -> (N,)``."""
        return lambda x: self._around(self.op, x, bank)

    def oracle(self, bank: Bank) -> Callable[[Tensor], Tensor]:
        """The log-density in operations that torch differentiates rightly."""
        return lambda x: self._around(self.written_out or self.op, x, bank)

    def features(self, bank: Bank, trusted: bool = False) -> Callable[[Tensor], Tensor]:
        """Two columns instead of one, ``(N, *event) -> (N, 2)``."""

        def both(x: Tensor) -> Tensor:
            f = (self.oracle if trusted else self.density)(bank)(x)
            return torch.stack([f, torch.sin(f)], 1)

        return both

    def vector(self, bank: Bank, trusted: bool = False) -> Callable[[Tensor], Tensor]:
        """A score network that ends in the operation, ``(N, D) -> (N, D)``."""

        def h(x: Tensor) -> Tensor:
            op = self.written_out if trusted and self.written_out else self.op
            y = op(x + 0.3 * torch.sin(x), bank)
            y = y.reshape(y.shape[0], -1)
            width = x[0].numel()
            return torch.reshape(
                torch.sin(y) @ bank(y.shape[1], width, k=8) - x.flatten(1), x.shape
            )

        return h

    def _around(self, op: Op, x: Tensor, bank: Bank) -> Tensor:
        y = op(x + 0.3 * torch.sin(x), bank)
        y = y.reshape(y.shape[0], -1)
        y = torch.tanh((0.7 + 0.1 * bank(1, k=9)) * y) if self.bent else y * bank(1, k=9)
        ramp = torch.linspace(0.5, 1.5, y.shape[1], dtype=torch.float64)
        return (y * ramp).sum(1) - 0.1 * x.square().flatten(1).sum(1)

    def points(self, n: int = 3) -> Tensor:
        """Standard normal points ``(n, *event)``."""
        return normal(n, *self.event, generator=torch.Generator().manual_seed(1))


INDEX = torch.tensor([2, 0, 0])
EVEN = torch.tensor([True, False, True])
GATHER = torch.tensor([[1, 0, 2, 2]])


def constants(*shape: int) -> Tensor:
    """Numbers that are nobody's parameters."""
    return torch.linspace(-1, 1.3, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


# ------------------------------------------------------------------ operations with a few lines


def batch_moved(z: Any, p: Any) -> Any:
    h = torch.sin(p(4, 3) @ z.T)
    return (h * p(4, 1)).T


def batch_last(z: Any, p: Any) -> Any:
    h = torch.exp(0.3 * z.permute(2, 1, 0))
    return (h * p(4, 2, 1)).movedim(-1, 0)


def square_transpose(z: Any, p: Any) -> Any:
    # With as many points as coordinates no shape tells the two axes apart.
    h = torch.sin(z.T)
    return (h * p(3, 1)).T.square()


def folded(z: Any, p: Any) -> Any:
    rows = z.reshape(-1, 1)
    return torch.sin(rows @ p(1, 4)).reshape(len(z), -1)


def folded_images(z: Any, p: Any) -> Any:
    n, a, b = z.shape
    h = torch.sin(z.reshape(n * a, b) @ p(b, 2))
    return h.unflatten(0, (n, a)).sum(1)


def assigned(z: Any, p: Any) -> Any:
    buffer = torch.zeros(len(z), 4, dtype=torch.float64)
    buffer[:, 1:] = z * p(3)
    return buffer.square()


def assigned_traced(z: Any, p: Any) -> Any:
    h = z * p(3)
    h[:, 0] = 0.0
    return h


def in_place_relative(z: Any, p: Any) -> Any:
    return z.clone().add_(p(3)).square()


def accumulated(z: Any, p: Any) -> Any:
    total = torch.zeros(len(z), dtype=torch.float64)
    for i in range(3):
        total += torch.sin(z[:, i]) * p(3)[i]
    return total.square()


def augmented_alias(z: Any, p: Any) -> Any:
    h = z * p(3)
    before = h
    h += torch.sin(z)
    return h * before  # both names are the sum


def augmented_view(z: Any, p: Any) -> Any:
    buffer = constants(1, 3).repeat(len(z), 1)
    column = buffer[:, 0]
    column += z[:, 0]
    return buffer * z * p(3)


def without_gradient(z: Any, p: Any) -> Any:
    with torch.no_grad():
        scale = z.square().sum(-1, keepdim=True)
    return z * p(3) / (1 + scale)


def detached(z: Any, p: Any) -> Any:
    return z * torch.sin(z.detach() * p(3))


class Cube(torch.autograd.Function):
    """A function with an implementation of its own."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return 3 * z**2 * grads[0]


def branch(z: Any, p: Any) -> Any:
    return torch.sin(z * p(3)) if float(z.detach().square().sum()) > -1 else z


def only_tensors(z: Any, p: Any) -> Any:
    if not isinstance(z, Tensor):
        raise TypeError("tensors only")
    return z * p(3)


def other_branch(z: Any, p: Any) -> Any:
    # A model that treats what is not a tensor differently must not be traced into that branch.
    return z * p(3) if isinstance(z, Tensor) else torch.sin(z)


def recomputed(z: Any, p: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(
        lambda h: torch.sin(h * p(3)).square(), z, use_reentrant=False
    )


def gru_by_hand(z: Any, p: Any) -> Any:
    h = torch.zeros(len(z), 2, dtype=torch.float64)
    for i in range(3):
        both = torch.cat([z[:, i : i + 1], h], 1)
        r, u = torch.sigmoid(both @ p(3, 4)).chunk(2, 1)
        candidate = torch.tanh(torch.cat([z[:, i : i + 1], r * h], 1) @ p(3, 2))
        h = (1 - u) * h + u * candidate
    return h


def gru_cell(z: Any, p: Any) -> Any:
    cell = p.net("gru_cell", lambda: nn.GRUCell(1, 2))
    h = torch.zeros(len(z), 2, dtype=torch.float64)
    for i in range(3):
        h = cell(z[:, i : i + 1], h)
    return h


def gru(z: Any, p: Any) -> Any:
    return p.net("gru", lambda: nn.GRU(2, 3, batch_first=True))(z)[0]


def lstm(z: Any, p: Any) -> Any:
    return p.net("lstm", lambda: nn.LSTM(2, 3, batch_first=True))(z)[0]


def attention_by_hand(z: Any, p: Any, mask: Any = None) -> Any:
    q, k, v = (z @ p(2, 4, k=i) for i in range(3))
    scores = q @ k.transpose(1, 2) / 2.0
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v


def attention(z: Any, p: Any, **options: Any) -> Any:
    q, k, v = (z @ p(2, 4, k=i) for i in range(3))
    return F.scaled_dot_product_attention(q, k, v, **options)


def causal(length: int) -> Tensor:
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(length, length, dtype=torch.float64).masked_fill(~allowed, float("-inf"))


def multihead(z: Any, p: Any, batch_first: bool) -> Any:
    layer = p.net(f"mha{batch_first}", lambda: nn.MultiheadAttention(4, 2, batch_first=batch_first))
    h = z if batch_first else z.transpose(0, 1)
    y, _ = layer(h, h, h, need_weights=False)
    return y if batch_first else y.transpose(0, 1)


def multihead_by_hand(z: Any, p: Any, batch_first: bool) -> Any:
    layer = p.net(f"mha{batch_first}", lambda: nn.MultiheadAttention(4, 2, batch_first=batch_first))
    return heads_by_hand(layer, z)


def heads_by_hand(layer: Any, z: Any) -> Any:
    q, k, v = (z @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in (q, k, v))
    y = torch.softmax(q @ k.transpose(-1, -2) / 2**0.5, -1) @ v
    return y.transpose(1, 2).flatten(2) @ layer.out_proj.weight.T + layer.out_proj.bias


def encoder(p: Any) -> Any:
    return p.net(
        "encoder",
        lambda: nn.TransformerEncoderLayer(
            4, 2, 5, dropout=0.0, activation=F.gelu, batch_first=True
        ),
    )


def encoder_by_hand(z: Any, p: Any) -> Any:
    layer = encoder(p)
    h = norm_by_hand(z + heads_by_hand(layer.self_attn, z), (-1,), *layer.norm1.parameters())
    return norm_by_hand(
        h + layer.linear2(F.gelu(layer.linear1(h))), (-1,), *layer.norm2.parameters()
    )


def norm_by_hand(z: Any, axes: tuple[int, ...], weight: Any = 1.0, bias: Any = 0.0) -> Any:
    centred = z - z.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True) + 1e-5).sqrt() * weight + bias


def groups_by_hand(z: Any, p: Any) -> Any:
    h = norm_by_hand(z.reshape(len(z), 2, -1), (2,)).reshape(z.shape)
    return h * p(4, 1, k=0) + p(4, 1, k=1)


def batch_norm(z: Any, p: Any) -> Any:
    def build() -> nn.Module:
        layer = nn.BatchNorm1d(3).eval()
        layer.running_mean.copy_(constants(3))
        layer.running_var.copy_(constants(3).exp())
        return layer

    return p.net("batch_norm", build)(z)


def kernel_mixture(z: Any, p: Any) -> Any:
    """A deep kernel exponential family: Gaussian kernels of features, at inducing points."""
    centres = p(5, 3)

    def features(h: Any) -> Any:
        return torch.tanh(h @ p(3, 4) + p(4)) + (h @ p(3, 4, k=1))

    here, there = features(z), features(centres)
    squared = (here.unsqueeze(1) - there.unsqueeze(0)).square().sum(-1)
    return torch.exp(-0.5 * squared) @ p(5)


def kernel_by_expansion(z: Any, p: Any) -> Any:
    centres = p(5, 3)
    squared = (z**2).sum(1, keepdim=True) - 2 * z @ centres.T + (centres**2).sum(1)
    return torch.exp(-0.5 * squared) @ p(5)


def coupling_flow(z: Any, p: Any) -> Any:
    """Additive couplings and a scale, with a standard normal behind them."""
    for k in range(2):
        a, b = z[:, 0::2], z[:, 1::2]
        b = b + torch.tanh(a @ p(2, 4, k=k)) @ p(4, 2, k=k)
        z = torch.stack([b, a], 2).flatten(1)
    return -0.5 * (z * torch.exp(p(4))).square().sum(1)


def residual_images(z: Any, p: Any) -> Any:
    h = F.conv2d(z, p(3, 2, 3, 3), padding=1)
    for k in range(2):
        inner = F.silu(F.group_norm(h, 3))
        h = h + F.conv2d(inner, p(3, 3, 3, 3, k=k), p(3, k=k), padding=1)
    return F.adaptive_avg_pool2d(h, 1).flatten(1) @ p(3, 2)


def residual_images_by_hand(z: Any, p: Any) -> Any:
    h = F.conv2d(z, p(3, 2, 3, 3), padding=1)
    for k in range(2):
        inner = F.silu(norm_by_hand(h, (2, 3)))
        h = h + F.conv2d(inner, p(3, 3, 3, 3, k=k), p(3, k=k), padding=1)
    return h.mean((2, 3)) @ p(3, 2)


def sequential(z: Any, p: Any) -> Any:
    return p.net(
        "mlp",
        lambda: nn.Sequential(
            nn.Linear(3, 5), nn.SiLU(inplace=True), nn.Linear(5, 4), nn.Softplus(), nn.Linear(4, 2)
        ),
    )(z)


def where_twice(z: Any, p: Any) -> Any:
    up = z > 0
    return torch.where(up, torch.log(torch.where(up, z, 1.0)), z * p(3))


def parallel_heads(z: Any, p: Any) -> Any:
    parts = [torch.sin(part) @ p(1, 2, k=i) for i, part in enumerate(z.split(1, dim=1))]
    return sum(parts) / len(parts)


def distances(z: Any, p: Any) -> Any:
    return (z.unsqueeze(1) - p(5, 3)).square().sum(-1).sqrt()


# ------------------------------------------------------------------------------- the table

ARITHMETIC = [
    Way("add constant", lambda z, p: z + p(3)),
    Way("add number", lambda z, p: z + 2.5),
    Way("radd number", lambda z, p: 2 + z),
    Way("add alpha", lambda z, p: torch.add(z, torch.sin(z), alpha=0.3)),
    Way("add alpha constant", lambda z, p: torch.add(p(3), z, alpha=-0.3)),
    Way("add column", lambda z, p: z + z.sum(1, keepdim=True)),
    Way("add more axes", lambda z, p: (z + p(4, 1, 3)).transpose(0, 1)),
    Way("add outer", lambda z, p: z.unsqueeze(1) + torch.sin(z).unsqueeze(2)),
    Way("sub", lambda z, p: z - torch.sin(z)),
    Way("sub alpha", lambda z, p: torch.sub(z, torch.sin(z), alpha=2)),
    Way("rsub number", lambda z, p: 1.5 - z),
    Way("rsub constant", lambda z, p: p(3) - z),
    Way("torch.rsub", lambda z, p: torch.rsub(z, p(3))),
    Way("mul constant", lambda z, p: z * p(3)),
    Way("mul number", lambda z, p: 3 * z * -0.5),
    Way("mul by itself", lambda z, p: z * z),
    Way("mul traced", lambda z, p: z * torch.sin(p(3) * z)),
    Way("mul column", lambda z, p: z.sum(1, keepdim=True) * torch.sin(z)),
    Way("mul more axes", lambda z, p: (p(4, 1, 3) * z).transpose(0, 1)),
    Way("mul fewer axes", lambda z, p: z.unsqueeze(1) * p(4, 1)),
    Way("mul numpy-like", lambda z, p: torch.multiply(z, p(3))),
    Way("mul outer", lambda z, p: z[:, :, None] * torch.sin(z)[:, None, :]),
    Way("div constant", lambda z, p: z / (2 + p(3).square())),
    Way("div number", lambda z, p: z / 3),
    Way("div more axes", lambda z, p: (z / p(4, 1, 3).exp()).transpose(0, 1)),
    Way("rdiv number", lambda z, p: 1.5 / z.exp()),
    Way("rdiv constant", lambda z, p: p(3) / z.exp()),
    Way("div traced", lambda z, p: torch.sin(z) / (1 + z.square())),
    Way("div column", lambda z, p: z / (1 + z.square().sum(1, keepdim=True))),
    Way("neg", lambda z, p: -z * p(3)),
    Way("pow 0", lambda z, p: z + z**0),
    Way("pow 1", lambda z, p: z**1),
    Way("pow 2", lambda z, p: z**2),
    Way("pow 3", lambda z, p: torch.pow(z, 3)),
    Way("pow 0.5", lambda z, p: z.exp() ** 0.5),
    Way("pow -1", lambda z, p: z.exp().pow(-1)),
    Way("pow parameter", lambda z, p: z.exp() ** p(3)),
    Way(
        "pow broadcast parameter", lambda z, p: (z.exp() ** p(4, 1, 3)).transpose(0, 1), traced=None
    ),
    Way("rpow number", lambda z, p: 2**z),
    Way("rpow parameter", lambda z, p: p(3).exp() ** z),
    Way("pow traced", lambda z, p: z.exp() ** torch.sin(z)),
    Way("square", lambda z, p: z.square() * p(3)),
    Way("addcmul", lambda z, p: torch.addcmul(p(3), z, torch.sin(z), value=0.3), traced=None),
    Way("lerp", lambda z, p: torch.lerp(z, torch.sin(z), 0.3)),
    Way("atan2", lambda z, p: torch.atan2(z, 2 + z.square())),
    Way("hypot", lambda z, p: torch.hypot(z, 1 + torch.sin(z).square())),
    Way("logaddexp", lambda z, p: torch.logaddexp(z, p(3))),
    Way("xlogy", lambda z, p: torch.xlogy(z, z.exp() + 1)),
    Way("mse_loss", lambda z, p: F.mse_loss(z, torch.sin(z), reduction="none")),
]

MATRICES = [
    Way("matmul", lambda z, p: z @ p(3, 4)),
    Way("matmul square", lambda z, p: z @ p(3, 3)),
    Way("matmul vector", lambda z, p: z @ p(3)),
    Way("matmul vector of images", lambda z, p: z @ p(3), event=(2, 3)),
    Way("matmul batched constant", lambda z, p: (z @ p(4, 3, 2)).transpose(0, 1)),
    Way("matmul square batched constant", lambda z, p: (z @ p(3, 3, 3)).transpose(0, 1)),
    Way("matmul images", lambda z, p: z @ p(3, 4), event=(2, 3)),
    Way("matmul images by images", lambda z, p: z @ torch.sin(z).mT, event=(2, 3)),
    Way("matmul on the left", lambda z, p: p(4, 2) @ z, event=(2, 3)),
    Way("matmul column on the left", lambda z, p: (p(4, 3) @ z.unsqueeze(-1)).squeeze(-1)),
    Way("matmul transposed on the left", lambda z, p: (p(4, 3) @ z.T).T),
    Way("matmul square transposed on the left", lambda z, p: (p(3, 3) @ z.T).T),
    Way("matmul batched on the left", lambda z, p: (p(4, 2, 3) @ z.T).permute(2, 0, 1)),
    Way("matmul square batched on the left", lambda z, p: (p(3, 3, 3) @ z.T).permute(2, 0, 1)),
    Way("matmul traced row by constant", lambda z, p: z.unsqueeze(1) @ p(3, 4)),
    Way("mm", lambda z, p: torch.mm(z, p(3, 4))),
    Way("mv", lambda z, p: torch.mv(z, p(3))),
    Way("bmm", lambda z, p: torch.bmm(z, torch.sin(z).transpose(1, 2)), event=(2, 3)),
    Way("bmm constant", lambda z, p: torch.bmm(z, p(1, 3, 2).expand(len(z), 3, 2)), event=(2, 3)),
    Way("rmatmul", lambda z, p: z.__rmatmul__(p(4, 2)), event=(2, 3)),
    Way("quadratic form", lambda z, p: ((z @ p(3, 3)) * z).sum(1)),
    Way(
        "quadratic form by bmm",
        lambda z, p: (z.unsqueeze(1) @ p(3, 3) @ z.unsqueeze(2)).flatten(1),
    ),
    Way("addmm", lambda z, p: torch.addmm(p(4), z, p(3, 4)), traced=None),
    Way("addmm transposed", lambda z, p: torch.addmm(p(3, 1), p(3, 3), z.T).T, traced=None),
    Way("inner", lambda z, p: torch.inner(z, p(4, 3))),
    Way("inner on the left", lambda z, p: torch.inner(p(4, 3), z).T, traced=None),
    Way("inner square on the left", lambda z, p: torch.inner(p(3, 3), z).T, traced=None),
    Way("tensordot", lambda z, p: torch.tensordot(z, p(3, 4), dims=1)),
    Way(
        "tensordot square on the left",
        lambda z, p: torch.tensordot(p(3, 3), z, dims=([1], [1])).T,
        traced=None,
    ),
    Way("einsum one", lambda z, p: torch.einsum("nd,dk->nk", z, p(3, 4))),
    Way("einsum moved", lambda z, p: torch.einsum("nd,kd->kn", z, p(3, 3)).T),
    Way("einsum two", lambda z, p: torch.einsum("nd,nd->n", z, torch.sin(z))),
    Way("einsum itself", lambda z, p: torch.einsum("nd,nd->n", z, z)),
    Way("einsum outer", lambda z, p: torch.einsum("nd,ne->nde", z, torch.sin(z))),
    Way("einsum form", lambda z, p: torch.einsum("nd,de,ne->n", z, p(3, 3), z)),
    Way(
        "einsum form, constant first", lambda z, p: torch.einsum("kde,nd,ne->nk", p(4, 3, 3), z, z)
    ),
    Way("einsum list", lambda z, p: torch.einsum("nd,dk->nk", [z, p(3, 4)])),
    Way("einsum transpose", lambda z, p: torch.einsum("nab->nba", z) * p(3, 2), event=(2, 3)),
    Way("einsum diagonal", lambda z, p: torch.einsum("naa->na", z) * p(3), event=(3, 3)),
    Way("einsum images", lambda z, p: torch.einsum("nab,ncb->nac", z, torch.sin(z)), event=(2, 3)),
    Way("einsum spaces", lambda z, p: torch.einsum("n d, d k -> n k", z, p(3, 4))),
    Way("einsum ellipsis", lambda z, p: torch.einsum("...d,dk->...k", z, p(3, 4)), traced=None),
    Way("einsum implicit", lambda z, p: torch.einsum("ad,dk", z, p(3, 4)), traced=None),
    Way(
        "einsum three",
        lambda z, p: torch.einsum("nd,nd,nd->n", z, torch.sin(z), z * p(3)),
        traced=None,
    ),
    Way("linear", lambda z, p: F.linear(z, p(4, 3), p(4))),
    Way("linear images", lambda z, p: F.linear(z, p(4, 3), p(4)), event=(2, 3)),
    Way("linear keywords", lambda z, p: F.linear(z, weight=p(4, 3), bias=p(4))),
    Way("linear traced weight", lambda z, p: F.linear(p(4, 3), z).T),
    Way("linear square traced weight", lambda z, p: F.linear(p(3, 3), z).T),
    Way("bilinear", lambda z, p: F.bilinear(z, torch.sin(z), p(4, 3, 3), p(4))),
    Way("bilinear one", lambda z, p: F.bilinear(z, p(1, 2).expand(len(z), 2), p(4, 3, 2))),
    Way("cholesky quadratic", lambda z, p: (z @ p(3, 3).tril()).square()),
    Way(
        "solve",
        lambda z, p: torch.linalg.solve(
            torch.eye(3, dtype=torch.float64) + z.unsqueeze(1) * p(3, 1) / 9, z
        ),
        traced=False,
    ),
    Way(
        "slogdet",
        lambda z, p: torch.linalg.slogdet(
            3 * torch.eye(3, dtype=torch.float64) + z.unsqueeze(1) * torch.sin(z).unsqueeze(2)
        )[1],
        traced=False,
    ),
    Way("kron", lambda z, p: torch.kron(z, p(1, 2))),
    Way("outer of columns", lambda z, p: z[:, 0:1] * torch.sin(z)),
    Way("cross", lambda z, p: torch.linalg.cross(z, torch.sin(z) * p(3))),
]

IMAGES = [
    Way("conv1d", lambda z, p: F.conv1d(z, p(3, 2, 2), p(3), padding=1), event=(2, 4)),
    Way("conv1d stride", lambda z, p: F.conv1d(z, p(3, 2, 2), stride=2), event=(2, 4)),
    Way("conv1d same", lambda z, p: F.conv1d(z, p(3, 2, 3), padding="same"), event=(2, 4)),
    Way("conv2d", lambda z, p: F.conv2d(z, p(2, 2, 2, 2), p(2)), event=(2, 3, 3)),
    Way("conv2d groups", lambda z, p: F.conv2d(z, p(4, 1, 2, 2), p(4), groups=2), event=(2, 3, 3)),
    Way("conv2d dilation", lambda z, p: F.conv2d(z, p(1, 1, 2, 2), dilation=2), event=(1, 3, 3)),
    Way("conv3d", lambda z, p: F.conv3d(z, p(2, 1, 2, 2, 2), p(2)), event=(1, 2, 2, 2)),
    Way(
        "conv_transpose1d",
        lambda z, p: F.conv_transpose1d(z, p(2, 3, 2), p(3), stride=2),
        event=(2, 3),
    ),
    Way(
        "conv_transpose2d",
        lambda z, p: F.conv_transpose2d(z, p(2, 1, 2, 2), p(2), stride=2, padding=1, groups=2),
        event=(2, 2, 2),
    ),
    Way(
        "conv_transpose3d",
        lambda z, p: F.conv_transpose3d(z, p(1, 2, 2, 1, 1), p(2)),
        event=(1, 2, 1, 2),
    ),
    Way(
        "conv modules",
        lambda z, p: p.net("conv", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"))(
            z
        ),
        event=(2, 3, 3),
    ),
    Way("avg_pool1d", lambda z, p: F.avg_pool1d(z, 2), event=(2, 4)),
    Way("avg_pool2d", lambda z, p: F.avg_pool2d(z, 2, stride=1, padding=1) * p(1), event=(2, 3, 3)),
    Way("avg_pool2d unbatched", lambda z, p: F.avg_pool2d(z, 2), event=(4, 4)),
    Way("adaptive_avg_pool1d", lambda z, p: F.adaptive_avg_pool1d(z, 2), event=(2, 3)),
    Way("adaptive_avg_pool2d", lambda z, p: F.adaptive_avg_pool2d(z, (1, 2)), event=(2, 3, 3)),
    Way("interpolate", lambda z, p: F.interpolate(z, scale_factor=2.0), event=(1, 2, 2)),
    Way(
        "interpolate bilinear",
        lambda z, p: F.interpolate(z, size=(3, 4), mode="bilinear", align_corners=False),
        event=(1, 2, 2),
    ),
    Way("pad", lambda z, p: F.pad(z, (1, 2))),
    Way("pad number", lambda z, p: F.pad(z, (1, 2), value=0.7)),
    Way("pad circular", lambda z, p: F.pad(z, (1, 1), mode="circular"), event=(2, 3)),
    Way("pad reflect", lambda z, p: F.pad(z, (1, 1), mode="reflect"), event=(2, 3)),
    Way("pad module", lambda z, p: nn.ConstantPad1d(1, 0.4)(z), event=(2, 3)),
    Way("pixel_shuffle", lambda z, p: F.pixel_shuffle(z, 2) * p(2, 1), event=(4, 1, 2)),
    Way("pixel_unshuffle", lambda z, p: F.pixel_unshuffle(z, 2) * p(4, 1, 1), event=(1, 2, 2)),
    Way("channel_shuffle", lambda z, p: F.channel_shuffle(z, 2) * p(4, 1, 1), event=(4, 1, 2)),
    Way("F.unfold", lambda z, p: F.unfold(z, 2) * p(4, 1), event=(1, 3, 2)),
    Way("F.fold", lambda z, p: F.fold(z, (2, 3), (2, 2)) * p(3), event=(4, 2)),
    Way("max_pool2d", lambda z, p: F.max_pool2d(z, 2), event=(1, 2, 4), kinked=True),
]

SHAPES = [
    Way("reshape", lambda z, p: z.reshape(-1, 2, 3) * p(2, 1), event=(6,)),
    Way("reshape tuple", lambda z, p: torch.reshape(z, (len(z), 3, 2)) * p(3, 1), event=(6,)),
    Way("reshape square", lambda z, p: (z.reshape(len(z), 3, 3) * p(3)).sum(2), event=(9,)),
    Way("view", lambda z, p: z.view(z.size(0), -1) * p(6), event=(2, 3)),
    Way("flatten", lambda z, p: z.flatten(1) * p(6), event=(2, 3)),
    Way("flatten module", lambda z, p: nn.Flatten()(z) * p(6), event=(2, 3)),
    Way("unflatten", lambda z, p: z.unflatten(1, (2, 3)) * p(2, 1), event=(6,)),
    Way("unflatten module", lambda z, p: nn.Unflatten(1, (2, 3))(z) * p(2, 1), event=(6,)),
    Way("squeeze", lambda z, p: z.squeeze(1) * p(3), event=(1, 3)),
    Way("squeeze last", lambda z, p: (z @ p(3, 1)).squeeze(-1)),
    Way("unsqueeze", lambda z, p: z.unsqueeze(0).unsqueeze(-1)[0] * p(3, 1)),
    Way("expand", lambda z, p: z.unsqueeze(1).expand(-1, 3, -1) * p(3, 1)),
    Way("expand batch", lambda z, p: (z.unsqueeze(0).expand(3, -1, -1) * p(3, 1, 1)).sum(0)),
    Way("expand batch square", lambda z, p: (z.expand(3, -1, -1) * p(3, 1, 1)).transpose(0, 1)),
    Way("expand_as", lambda z, p: z.sum(1, keepdim=True).expand_as(z) * p(3)),
    Way("expand_as of constant", lambda z, p: p(3).expand_as(z) * z),
    Way("broadcast_to", lambda z, p: torch.broadcast_to(z[:, :1], z.shape) * p(3)),
    Way("repeat", lambda z, p: z.repeat(1, 2) * p(6)),
    Way("repeat more axes", lambda z, p: (z.repeat(3, 1, 1) * p(3, 1, 1)).sum(0)),
    Way("tile", lambda z, p: z.tile(2) * p(6)),
    Way("repeat_interleave", lambda z, p: z.repeat_interleave(2, dim=1) * p(6)),
    Way(
        "repeat_interleave batch",
        lambda z, p: torch.sin(z.repeat_interleave(2, dim=0)).reshape(len(z), -1),
        traced=None,
    ),
    Way("permute", lambda z, p: z.permute(0, 2, 1) * p(2), event=(2, 3)),
    Way("permute square", lambda z, p: z.permute(0, 2, 1) * p(3), event=(3, 3)),
    Way("transpose", lambda z, p: torch.transpose(z, 1, 2) * p(2), event=(2, 3)),
    Way("swapaxes", lambda z, p: z.swapaxes(1, 2) * p(2), event=(2, 3)),
    Way("movedim", lambda z, p: z.movedim(1, -1) * p(2), event=(2, 3)),
    Way("mT", lambda z, p: z.mT * p(2), event=(2, 3)),
    Way("mH", lambda z, p: z.mH * p(2), event=(2, 3), traced=None),
    Way("H", lambda z, p: (z.H.square() * p(3, 1)).T, traced=None),
    Way("real", lambda z, p: z.real * p(3), traced=None),
    Way("t", lambda z, p: (z.t() * p(3, 1)).t()),
    Way("T square", square_transpose),
    Way("batch axis moved", batch_moved),
    Way("batch axis last", batch_last, event=(2, 4)),
    Way(
        "batch axis last square",
        lambda z, p: torch.exp(0.3 * z.permute(2, 1, 0)).permute(2, 1, 0) * p(3, 1),
        event=(3, 3),
    ),
    Way("batch axis folded", folded),
    Way("batch axis folded, images", folded_images, event=(2, 3)),
    Way("batch axis folded, square", folded_images, event=(3, 3)),
    Way("chunk", lambda z, p: (lambda a, b: a * torch.sin(b))(*z.chunk(2, 1)), event=(4,)),
    Way("split", lambda z, p: (lambda a, b: a.sum(1) * b[:, 0])(*z.split([2, 1], dim=1))),
    Way("split of one size", lambda z, p: (lambda a, b: a * b)(*torch.split(z, 2, -1)), event=(4,)),
    Way("tensor_split", lambda z, p: z.tensor_split(2, dim=1)[0] * p(2)),
    Way("unbind", lambda z, p: (lambda a, b, c: a * b + torch.sin(c))(*z.unbind(1))),
    Way("unbind square", lambda z, p: torch.stack(z.unbind(2), 1) * p(3), event=(3, 3)),
    Way("stack", lambda z, p: torch.stack([z, torch.sin(z), z * p(3)], 1)),
    Way("stack first", lambda z, p: torch.stack([z, torch.sin(z)]).movedim(0, 1) * p(2, 1)),
    Way("stack last with constants", lambda z, p: torch.stack([z, p(3).expand_as(z)], -1)),
    Way("cat", lambda z, p: torch.cat([z, torch.sin(z)], 1) * p(6)),
    Way("cat with constants", lambda z, p: torch.cat([p(1, 2).expand(len(z), 2), z], -1) ** 2),
    Way("cat tuple keyword", lambda z, p: torch.cat((z, z), dim=1) * p(6)),
    Way("hstack", lambda z, p: torch.hstack([z, torch.sin(z)]), traced=None),
    Way("T of three axes", lambda z, p: z.permute(2, 1, 0).mT.movedim(0, 2).mT, event=(2, 3)),
    Way("diag_embed", lambda z, p: torch.diag_embed(z) @ p(3, 2), traced=None),
    Way(
        "diag_embed bent last",
        lambda z, p: (torch.diag_embed(z) + 0.2).square().flatten(1) @ p(9),
        traced=None,
        bent=False,
    ),
    Way(
        "diagonal", lambda z, p: torch.diagonal(z, dim1=1, dim2=2) * p(3), event=(3, 3), traced=None
    ),
    Way("rot90", lambda z, p: torch.rot90(z, 1, (1, 2)) * p(2), event=(2, 3)),
    Way("tril", lambda z, p: z.tril() * p(3), event=(3, 3)),
    Way("triu", lambda z, p: torch.triu(z, 1) + z.square() * p(3), event=(3, 3)),
    Way("contiguous clone", lambda z, p: z.mT.contiguous().clone() * p(2), event=(2, 3)),
    Way("to", lambda z, p: z.to(torch.float64).double() * p(3)),
    Way("type_as", lambda z, p: z.type_as(p(3)) * p(3)),
    Way("view_as", lambda z, p: z.view_as(torch.zeros(len(z), 3, 2)) * p(3, 1), event=(6,)),
    Way("atleast_2d", lambda z, p: torch.atleast_2d(z) * p(3), traced=None),
]

INDEXING = [
    Way("slice", lambda z, p: z[:, 1:] * p(2)),
    Way("slice step", lambda z, p: z[:, ::2] * p(2)),
    Way("column", lambda z, p: z[:, 1] * torch.sin(z[:, -1])),
    Way("Ellipsis", lambda z, p: z[..., 0] * p(2), event=(2, 3)),
    Way("None", lambda z, p: z[:, None] * p(4, 1)),
    Way("None first", lambda z, p: torch.sin(z[None])[0] * p(3)),
    Way("index list", lambda z, p: z[:, [2, 0]] * p(2)),
    Way("index tensor", lambda z, p: z[:, INDEX] * p(3)),
    Way("index matrix", lambda z, p: z[:, INDEX.expand(2, 3)] * p(3)),
    Way("index array", lambda z, p: z[:, INDEX.numpy()] * p(3), traced=None),
    Way("two index tensors", lambda z, p: z[:, INDEX, INDEX - 1] * p(3), event=(3, 3), traced=None),
    Way("two index tensors, quadratic", lambda z, p: z[:, INDEX] * z[:, INDEX - 1]),
    Way("index of a number", lambda z, p: z[:, torch.tensor(1)] * torch.sin(z[:, 0])),
    Way("boolean mask", lambda z, p: z[:, EVEN] * p(2)),
    Way("boolean matrix", lambda z, p: z[:, torch.eye(3, dtype=torch.bool)] * p(3), event=(3, 3)),
    Way("rows of the transpose", lambda z, p: torch.sin(z.T[INDEX]).T * p(3)),
    Way(
        "rows of the transpose, array",
        lambda z, p: torch.sin(z.T[INDEX.numpy()]).T * p(3),
        traced=None,
    ),
    Way(
        "rows of the transpose, tuple", lambda z, p: torch.sin(z.T[(0, 2), :]).T * p(2), traced=None
    ),
    Way("rows of the transpose, number", lambda z, p: torch.sin(z.T[1]) * p(1)),
    Way("rows of the transpose, mask", lambda z, p: torch.sin(z.T[EVEN]).T * p(2)),
    Way(
        "a mask of two axes before the batch",
        lambda z, p: (
            torch.sin(
                z.permute(1, 2, 0)
                .unsqueeze(-1)
                .unsqueeze(-1)
                .expand(2, 3, len(z), 1, 3)[
                    torch.tensor([[True, False, True], [False, True, False]])
                ]
            ).transpose(0, 1)
            * p(3)
        ),
        traced=None,
        event=(2, 3),
    ),
    Way(
        "a number and an index tensor around the batch",
        lambda z, p: torch.sin(z.transpose(0, 1)[0, :, INDEX]) * p(3),
        event=(2, 3),
    ),
    Way("narrow", lambda z, p: z.narrow(1, 1, 2) * p(2)),
    Way("select", lambda z, p: z.select(1, 1) * torch.sin(z.select(1, 0))),
    Way("index_select", lambda z, p: torch.index_select(z, 1, INDEX) * p(3)),
    Way("index_select keywords", lambda z, p: torch.index_select(z, dim=1, index=INDEX) * p(3)),
    Way(
        "gather keywords",
        lambda z, p: torch.gather(z, dim=1, index=GATHER.expand(len(z), 4)) * p(4),
    ),
    Way("gather", lambda z, p: z.gather(1, GATHER.expand(len(z), 4)) * p(4)),
    Way("take_along_dim", lambda z, p: torch.take_along_dim(z, GATHER.expand(len(z), 4), 1) * p(4)),
    Way("where", lambda z, p: torch.where(EVEN, z, torch.sin(z) * p(3))),
    Way("where constant", lambda z, p: torch.where(EVEN, z, p(3))),
    Way("where number", lambda z, p: torch.where(EVEN, 0.5, z)),
    Way("where twice", where_twice, kinked=True),
    Way("where method", lambda z, p: z.where(EVEN, torch.sin(z) * p(3)), traced=None),
    Way(
        "where more axes",
        lambda z, p: torch.where(EVEN.reshape(3, 1, 1), z, z.square()).movedim(0, 1) * p(3),
    ),
    Way("masked_fill", lambda z, p: z.masked_fill(EVEN, 0.7) * p(3)),
    Way("masked_fill keyword", lambda z, p: z.masked_fill(EVEN, value=0.7) * p(3), traced=None),
    Way("flip", lambda z, p: z.flip(1) * p(3)),
    Way("flip dims", lambda z, p: torch.flip(z, dims=(1, 2)) * p(3), event=(2, 3)),
    Way("fliplr", lambda z, p: torch.fliplr(z) * p(3)),
    Way("roll", lambda z, p: torch.roll(z, 1, dims=1) * z * p(3)),
    Way("roll method", lambda z, p: z.roll(1, 1) * p(3)),
    Way("Tensor.unfold", lambda z, p: z.unfold(1, 2, 1) * p(2)),
    Way("scatter", lambda z, p: torch.scatter(z, 1, GATHER[:, :2].expand(len(z), 2), 0.3) * p(3)),
    Way("index_add", lambda z, p: torch.index_add(z, 1, INDEX, torch.sin(z)) * p(3)),
]

GATHERING = [
    Way("sum", lambda z, p: z.sum(1) * p(1)),
    Way("sum axes", lambda z, p: z.sum((1, 3)) * p(3), event=(2, 3, 2)),
    Way("sum keepdim", lambda z, p: z.sum(-1, keepdim=True) * z),
    Way("sum numpy axis", lambda z, p: z.sum(axis=1) * p(1), traced=None),
    Way("mean", lambda z, p: z.mean(1) * p(1)),
    Way("mean of images", lambda z, p: torch.mean(z, dim=(2, 3)) * p(2), event=(2, 2, 3)),
    Way("sum of the transpose", lambda z, p: torch.sin(z.T.sum(0)) * p(1)),
    Way("cumsum", lambda z, p: z.cumsum(1) * p(3)),
    Way("cumsum keyword", lambda z, p: torch.cumsum(z, dim=1) * p(3)),
    Way("cumprod", lambda z, p: z.cumprod(1) * p(3)),
    Way("prod", lambda z, p: z.prod(1) * p(1)),
    Way("prod keepdim", lambda z, p: torch.prod(z, -1, True) * p(1)),
    Way("maximum", lambda z, p: torch.maximum(z, p(3)), kinked=True),
    Way("minimum", lambda z, p: torch.minimum(z, torch.sin(z) * p(3)), kinked=True),
    Way("max of two", lambda z, p: torch.max(z, p(3)), kinked=True),
    Way("max along an axis", lambda z, p: z.max(1).values * p(1), kinked=True),
    Way("max keepdim", lambda z, p: torch.max(z, dim=1, keepdim=True)[0] * z, kinked=True),
    Way("amax", lambda z, p: z.amax(1) * p(1), kinked=True),
    Way("sort", lambda z, p: z.sort(1).values * p(3), kinked=True, traced=None),
    Way("topk", lambda z, p: z.topk(2).values * p(2), kinked=True, traced=None),
    Way("softmax", lambda z, p: torch.softmax(z * p(3), 1)),
    Way("softmax of images", lambda z, p: F.softmax(z * p(3), dim=1) * p(2, 1), event=(2, 3)),
    Way("log_softmax", lambda z, p: torch.log_softmax(z * p(3), -1)),
    Way("log_softmax module", lambda z, p: nn.LogSoftmax(dim=1)(z)),
    Way("logsumexp", lambda z, p: torch.logsumexp(z * p(3), 1)),
    Way("logsumexp axes", lambda z, p: z.logsumexp((1, 2)), event=(2, 3)),
    Way("logsumexp keepdim", lambda z, p: z - torch.logsumexp(z, dim=1, keepdim=True)),
    Way("softmin", lambda z, p: F.softmin(z, dim=1)),
    Way("mixture", lambda z, p: torch.logsumexp(-(z[:, None] - p(4, 3)).square().sum(2), 1)),
    Way("var", lambda z, p: z.var(1) * p(1)),
    Way("var biased", lambda z, p: torch.var(z, dim=1, unbiased=False) * p(1)),
    Way("var correction", lambda z, p: torch.var(z, dim=(1, 2), correction=0), event=(2, 3)),
    Way("std", lambda z, p: z.std(1, keepdim=True) * z),
    Way("norm", lambda z, p: z.norm(dim=1) * p(1)),
    Way("vector_norm", lambda z, p: torch.linalg.vector_norm(z, dim=1, keepdim=True) * z),
    Way("linalg.norm", lambda z, p: torch.linalg.norm(z, dim=1)),
    Way("norm of order 3", lambda z, p: torch.linalg.vector_norm(z, 3, dim=1), traced=None),
    Way("distances", distances),
]

LAYERS = [
    Way(
        "layer_norm",
        lambda z, p: F.layer_norm(z, (3,), p(3), p(3, k=1)),
        written_out=lambda z, p: norm_by_hand(z, (-1,), p(3), p(3, k=1)),
    ),
    Way(
        "layer_norm of images",
        lambda z, p: F.layer_norm(z, (2, 3)) * p(3),
        event=(2, 3),
        written_out=lambda z, p: norm_by_hand(z, (1, 2)) * p(3),
    ),
    Way(
        "layer_norm module",
        lambda z, p: p.net("ln", lambda: nn.LayerNorm(3))(z),
        written_out=lambda z, p: norm_by_hand(
            z, (-1,), *p.net("ln", lambda: nn.LayerNorm(3)).parameters()
        ),
    ),
    Way(
        "group_norm",
        lambda z, p: F.group_norm(z, 2, p(4, 1)[:, 0], p(4, 1, k=1)[:, 0]),
        event=(4, 2),
        written_out=groups_by_hand,
    ),
    Way(
        "instance_norm",
        lambda z, p: F.instance_norm(z, weight=p(2, 1)[:, 0]),
        event=(2, 3),
        written_out=lambda z, p: norm_by_hand(z, (2,), p(2, 1)),
    ),
    Way("rms_norm", lambda z, p: F.rms_norm(z, (3,), p(3), 1e-5)),
    Way("batch_norm eval", batch_norm),
    Way("normalize", lambda z, p: F.normalize(z * p(3), dim=1), kinked=True),
    Way(
        "cosine_similarity",
        lambda z, p: F.cosine_similarity(z, torch.sin(z) * p(3), dim=1),
        kinked=True,
    ),
    Way(
        "cdist",
        lambda z, p: torch.cdist(z, p(5, 3)),
        written_out=lambda z, p: (z.unsqueeze(1) - p(5, 3)).square().sum(-1).sqrt(),
    ),
    Way(
        "cdist square on the left",
        lambda z, p: torch.cdist(p(3, 3), z).T,
        written_out=lambda z, p: (z.unsqueeze(1) - p(3, 3)).square().sum(-1).sqrt(),
    ),
    Way("glu", lambda z, p: F.glu(z * p(4), 1), event=(4,)),
    Way("glu module", lambda z, p: nn.GLU()(z), event=(4,)),
    Way("dropout eval", lambda z, p: F.dropout(z, 0.5, training=False) * p(3)),
    Way("attention", attention, event=(3, 2), written_out=attention_by_hand),
    Way(
        "attention mask",
        lambda z, p: attention(z, p, attn_mask=constants(3, 3)),
        event=(3, 2),
        written_out=lambda z, p: attention_by_hand(z, p, constants(3, 3)),
    ),
    Way(
        "attention boolean mask",
        lambda z, p: attention(z, p, attn_mask=torch.ones(3, 3, dtype=torch.bool).tril()),
        event=(3, 2),
        written_out=lambda z, p: attention_by_hand(z, p, causal(3)),
    ),
    Way(
        "attention causal",
        lambda z, p: attention(z, p, is_causal=True),
        event=(3, 2),
        written_out=lambda z, p: attention_by_hand(z, p, causal(3)),
    ),
    Way(
        "attention scale",
        lambda z, p: attention(z, p, scale=0.5),
        event=(3, 2),
        written_out=attention_by_hand,
    ),
    Way("attention by hand", attention_by_hand, event=(3, 2)),
    Way(
        "MultiheadAttention batch_first",
        lambda z, p: multihead(z, p, True),
        event=(3, 4),
        written_out=lambda z, p: multihead_by_hand(z, p, True),
    ),
    Way(
        "MultiheadAttention",
        lambda z, p: multihead(z, p, False),
        event=(3, 4),
        written_out=lambda z, p: multihead_by_hand(z, p, False),
    ),
    Way(
        "TransformerEncoderLayer",
        lambda z, p: encoder(p)(z),
        event=(2, 4),
        written_out=encoder_by_hand,
    ),
    Way(
        "TransformerEncoderLayer eval",
        lambda z, p: encoder(p).eval()(z),
        event=(2, 4),
        written_out=encoder_by_hand,
    ),
    Way("GRU by hand", gru_by_hand),
    Way("GRUCell", gru_cell),
    Way("GRU", gru, event=(3, 2), traced=False),
    Way("LSTM", lstm, event=(2, 2), traced=False),
    Way("sequential, in place", sequential),
]

HABITS = [
    Way("custom function", lambda z, p: Cube.apply(z * p(3)), traced=False),
    Way("no_grad inside", without_gradient, traced=False),
    Way("detach inside", detached),
    Way("data inside", lambda z, p: z * torch.sin(z.data * p(3))),
    Way("in place method", in_place_relative, traced=False),
    Way("in place activation", lambda z, p: (z * p(3)).sigmoid_(), traced=False),
    Way("assignment into a buffer", assigned, traced=False),
    Way("assignment into a traced value", assigned_traced, traced=False),
    Way("augmented assignment", accumulated, traced=None),
    Way("augmented assignment to two names", augmented_alias, traced=None),
    Way("augmented assignment to a view", augmented_view, traced=False),
    Way("branch on a value", branch),
    Way("tensors only", only_tensors, traced=None),
    Way("another branch for non-tensors", other_branch, traced=None),
    Way("checkpoint", recomputed),
    Way("iteration over columns", lambda z, p: sum(torch.sin(c) * p(3)[0] for c in z.T)),
    Way("shape of x", lambda z, p: z * p(3) / z.shape[1] + z.size(-1) + z.ndim + z.dim()),
    Way("zeros_like", lambda z, p: torch.zeros_like(z) + z * torch.ones_like(z) * p(3)),
    Way("new_zeros", lambda z, p: torch.cat([z.new_zeros(len(z), 1), z * p(3)], 1)),
    Way("comparison as a number", lambda z, p: z * (z > 5).double() + torch.sin(z) * p(3)),
    Way("parallel heads", parallel_heads),
]

MODELS = [
    Way("deep kernel", kernel_mixture),
    Way("kernel by expansion", kernel_by_expansion),
    Way("additive couplings", coupling_flow, event=(4,)),
    Way("residual images", residual_images, event=(2, 3, 3), written_out=residual_images_by_hand),
]

WAYS = [
    *ARITHMETIC,
    *MATRICES,
    *IMAGES,
    *SHAPES,
    *INDEXING,
    *GATHERING,
    *LAYERS,
    *HABITS,
    *MODELS,
]

"""Modules of torch itself, and what torch wraps around modules."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.zoo.entry import Energy, Entry, Model, Through, density, energy, vector


def mlp(act: Callable[[], nn.Module] = nn.Tanh, inputs: int = 3, outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), act(), nn.Linear(8, 8), act(), nn.Linear(8, outputs))


def through(module: nn.Module, function: Callable[[Any, Tensor], Tensor], *event: int) -> Model:
    return energy(Through(module, function), *event)


def scripted() -> Model:
    return density(torch.jit.script(Energy(mlp())), 3)


def scripted_net() -> Model:
    return energy(torch.jit.script(mlp(nn.SiLU)), 3)


def traced() -> Model:
    return density(torch.jit.trace(Energy(mlp()), torch.randn(6, 3)), 3)


def compiled(**options: Any) -> Model:
    torch._logging.set_logs(dynamo=logging.ERROR)
    net = Energy(mlp())
    return density(torch.compile(net, **options), 3, module=net)


def vmapped(act: Callable[[], nn.Module] = nn.Tanh) -> Model:
    nets = [mlp(act) for _ in range(3)]
    stacked, buffers = torch.func.stack_module_state(nets)

    def one(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(nets[0], (p, b), (x,)).squeeze(-1)

    def ensemble(x: Tensor) -> Tensor:
        values = torch.func.vmap(one, in_dims=(0, 0, None))(stacked, buffers, x)
        return values.logsumexp(0) - 0.5 * x.square().sum(-1)

    return density(ensemble, 3, module=stacked.values())


def rows_vmapped() -> Model:
    net = mlp()
    return through(net, lambda m, x: torch.func.vmap(m)(x), 3)


def functional() -> Model:
    net = Energy(mlp())
    parameters = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    return density(
        lambda x: torch.func.functional_call(net, parameters, (x,)), 3, module=parameters.values()
    )


def bound_method() -> Model:
    net = Energy(mlp())
    return density(net.forward, 3, module=net)


def with_partial() -> Model:
    net = Energy(mlp())
    return density(
        partial(torch.func.functional_call, net, dict(net.named_parameters())), 3, module=net
    )


class Swish(torch.autograd.Function):
    """The usual memory-saving SiLU, with a backward pass that torch can differentiate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s + x * s * (1 - s))


class OnceSwish(Swish):
    """The same, but with a backward pass that may be called once only."""

    backward = staticmethod(torch.autograd.function.once_differentiable(Swish.backward))


def custom(function: type[torch.autograd.Function]) -> Model:
    first, last = nn.Linear(3, 8), nn.Linear(8, 1)
    both = nn.ModuleList([first, last])
    return through(both, lambda m, x: m[1](function.apply(m[0](x))), 3)


class Spectral(nn.Module):
    """A layer that filters in Fourier space, as in Fourier neural operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 5, 2))

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.view_as_complex(self.weight)
        modes = torch.fft.rfft(x.reshape(-1, 2, 8)) * weight
        return torch.tanh(torch.fft.irfft(modes, n=8)).flatten(1)


def attention(need_weights: bool = False, **options: Any) -> Model:
    layer = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    return through(layer, lambda m, x: m(x, x, x, need_weights=need_weights)[0], 3, 8)


def causal() -> Model:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    return through(
        layer, lambda m, x: m(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0], 3, 8
    )


def encoder(layers: int = 1, **options: Any) -> Model:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **options)
    return energy(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), 3, 8)


def transformer() -> Model:
    net = nn.Transformer(8, 2, 1, 1, 16, 0.0, "gelu", batch_first=True)
    return through(net, lambda m, x: m(x, x.flip(1)), 3, 8)


def recurrent(layer: nn.Module) -> Model:
    return through(layer, lambda m, x: m(x)[0], 4, 3)


def cell(layer: nn.RNNCell | nn.GRUCell) -> Model:
    def unroll(m: nn.RNNCell, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 5)
        for step in x.unbind(1):
            h = m(step, h)
        return h

    return through(layer, unroll, 3, 2)


def convolutional(norm: nn.Module, act: Callable[[], nn.Module] = nn.SiLU) -> Model:
    return vector(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), norm, act(), nn.Conv2d(4, 2, 3, padding=1)),
        2,
        4,
        4,
    )


def normalised(norm: nn.Module) -> Model:
    return energy(nn.Sequential(nn.Linear(3, 8), norm, nn.Tanh(), nn.Linear(8, 1)), 3)


def evaluated_batch_norm() -> Model:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    net(torch.randn(50, 3))
    return energy(net.eval(), 3)


def dropout() -> Model:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
    return energy(net, 3)


def energy_score() -> Model:
    net = Energy(mlp(nn.SiLU))

    def score(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]

    return vector(score, 3, module=net)


def bilinear_sampling() -> Model:
    image = nn.Parameter(torch.randn(1, 2, 5, 5))

    def sample(x: Tensor) -> Tensor:
        grid = torch.tanh(x)[None, :, None]
        values = F.grid_sample(image, grid, align_corners=False)[0, :, :, 0].T
        return values.sum(-1) - 0.5 * x.square().sum(-1)

    return density(sample, 2, module=[image], num=16)


def spectral(x: int = 3) -> nn.Module:
    net = mlp(inputs=x)
    net[0] = parametrizations.spectral_norm(net[0])
    return net.eval()


def weight_normed() -> nn.Module:
    net = mlp()
    net[0] = parametrizations.weight_norm(net[0])
    return net


def orthogonal() -> nn.Module:
    net = mlp(inputs=8)
    net[0] = parametrizations.orthogonal(net[0])
    return net


def larger(net: nn.Module) -> nn.Module:
    """The net with weights large enough for its inputs to reach every kink."""
    for p in net.parameters():
        p.data *= 4
    return net


def act(kind: Callable[..., nn.Module], **options: Any) -> Callable[[], Model]:
    return lambda: energy(larger(mlp(lambda: kind(**options))), 3, num=12)


def torch_entry(
    name: str, build: Callable[[], Model], verdict: Any = "smooth", why: str = ""
) -> Entry:
    return Entry("torch", name, build, verdict, why)


SMOOTH = {"SiLU": nn.SiLU, "GELU": nn.GELU, "Softplus": nn.Softplus, "Mish": nn.Mish}
SMOOTH |= {"Sigmoid": nn.Sigmoid, "LogSigmoid": nn.LogSigmoid}
KINKED = {"ReLU": nn.ReLU, "LeakyReLU": nn.LeakyReLU, "ELU": nn.ELU, "SELU": nn.SELU}
KINKED |= {"Hardswish": nn.Hardswish, "Softsign": nn.Softsign, "PReLU": nn.PReLU}
ONCE = "its backward pass may be differentiated once only"

ENTRIES = [
    *(torch_entry(f"MLP, {name}", act(kind)) for name, kind in SMOOTH.items()),
    *(torch_entry(f"MLP, {name}", act(kind), "kinked", name) for name, kind in KINKED.items()),
    torch_entry("MLP, GELU tanh", act(nn.GELU, approximate="tanh")),
    torch_entry("jit.script of a density", scripted),
    torch_entry("jit.script of a layer stack", scripted_net),
    torch_entry("jit.trace", traced),
    torch_entry("compile, eager backend", partial(compiled, backend="eager")),
    torch_entry("compile, aot_eager backend", partial(compiled, backend="aot_eager")),
    torch_entry("compile, inductor", compiled),
    torch_entry(
        "checkpoint of all layers",
        lambda: through(mlp(), lambda m, x: checkpoint(m, x, use_reentrant=False), 3),
    ),
    torch_entry(
        "checkpoint of the first layers",
        lambda: through(mlp(), lambda m, x: m[2:](checkpoint(m[:2], x, use_reentrant=False)), 3),
    ),
    torch_entry(
        "checkpoint_sequential",
        lambda: through(mlp(), lambda m, x: checkpoint_sequential(m, 2, x, use_reentrant=False), 3),
    ),
    torch_entry("weight_norm", lambda: energy(weight_normed(), 3)),
    torch_entry("spectral_norm, evaluated", lambda: energy(spectral(), 3)),
    torch_entry("orthogonal parametrisation", lambda: energy(orthogonal(), 8)),
    torch_entry("functional_call", functional),
    torch_entry("ensemble by vmap", vmapped),
    torch_entry("ensemble by vmap, ReLU", partial(vmapped, nn.ReLU), "kinked", "ReLU under vmap"),
    torch_entry("rows by vmap", rows_vmapped),
    torch_entry("bound method", bound_method),
    torch_entry("functools.partial", with_partial),
    torch_entry("DataParallel", lambda: energy(nn.DataParallel(mlp()), 3)),
    torch_entry("custom autograd function", partial(custom, Swish)),
    torch_entry("custom function, once only", partial(custom, OnceSwish), "opaque", ONCE),
    torch_entry("score by autograd inside", energy_score),
    torch_entry("Fourier layer", lambda: energy(Spectral(), 16)),
    torch_entry("MultiheadAttention", attention),
    torch_entry("MultiheadAttention, weights", partial(attention, True)),
    torch_entry("MultiheadAttention, zero attention", partial(attention, add_zero_attn=True)),
    torch_entry("MultiheadAttention, bias_kv", partial(attention, add_bias_kv=True)),
    torch_entry("MultiheadAttention, causal", causal),
    torch_entry("TransformerEncoder, GELU", partial(encoder, 2, activation="gelu")),
    torch_entry(
        "TransformerEncoder, norm first", partial(encoder, activation=F.silu, norm_first=True)
    ),
    torch_entry("TransformerEncoder, ReLU", encoder, "kinked", "ReLU"),
    torch_entry("Transformer, GELU", transformer),
    torch_entry("RNN, tanh", lambda: recurrent(nn.RNN(3, 4, batch_first=True))),
    torch_entry(
        "RNN, ReLU",
        lambda: recurrent(nn.RNN(3, 4, nonlinearity="relu", batch_first=True)),
        "kinked",
        "ReLU inside",
    ),
    torch_entry("GRU", lambda: recurrent(nn.GRU(3, 4, batch_first=True))),
    torch_entry(
        "LSTM, two layers, both ways",
        lambda: recurrent(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)),
    ),
    torch_entry("RNNCell", lambda: cell(nn.RNNCell(2, 5))),
    torch_entry("GRUCell", lambda: cell(nn.GRUCell(2, 5))),
    torch_entry("Bilinear", lambda: through(nn.Bilinear(3, 3, 4), lambda m, x: m(x, x.tanh()), 3)),
    torch_entry("LayerNorm", lambda: normalised(nn.LayerNorm(8))),
    torch_entry("RMSNorm", lambda: normalised(nn.RMSNorm(8))),
    torch_entry("BatchNorm, evaluated", evaluated_batch_norm),
    torch_entry(
        "BatchNorm, training", lambda: normalised(nn.BatchNorm1d(8)), "coupled", "batch norm"
    ),
    Entry("torch", "Dropout, training", dropout, random=True),
    torch_entry("convolutions, GroupNorm", lambda: convolutional(nn.GroupNorm(2, 4))),
    torch_entry("convolutions, InstanceNorm", lambda: convolutional(nn.InstanceNorm2d(4))),
    torch_entry(
        "convolutions, ReLU",
        lambda: convolutional(nn.GroupNorm(2, 4), nn.ReLU),
        "kinked",
        "ReLU in a field",
    ),
    torch_entry("bilinear grid_sample", bilinear_sampling, "kinked", "piecewise bilinear"),
]

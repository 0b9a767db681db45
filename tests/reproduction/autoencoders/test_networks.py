"""The paper's networks: their layers, their initial weights, and how they read a context."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scorematching as sm
from reproduction.autoencoders import celeba_networks, mnist_networks
from reproduction.autoencoders.celeba_networks import ConditionalConv
from scorematching.errors import SmoothnessError
from scorematching.models import BernoulliPixels, ConditionalMLP, NormalPixels
from tests.statistics import assert_mean
from tests.tolerances import IDENTITY, ROUTES

MAKERS = ("make_vae", "make_implicit_vae", "make_wae")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def near(a: Tensor, b: Tensor, tolerance: float = IDENTITY) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance)


# The tables, layer by layer.


def layers(module: nn.Module) -> list[str]:
    """Layers in words: inputs and outputs of those with weights, names of the others."""

    def describe(layer: nn.Module) -> str:
        name = type(layer).__name__
        if isinstance(layer, nn.Linear):
            return f"{layer.in_features}-{layer.out_features}"
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            sizes = (layer.kernel_size, layer.stride, layer.padding, layer.output_padding)
            grows = isinstance(layer, nn.ConvTranspose2d)
            assert sizes == ((5, 5), (2, 2), (2, 2), (int(grows), int(grows)))
            return f"{'grow' if grows else 'conv'} {layer.in_channels}-{layer.out_channels}"
        return name

    shapes = (nn.Flatten, nn.Unflatten)
    leaves = [m for m in module.modules() if not list(m.children())]
    return [describe(m) for m in leaves if not isinstance(m, shapes)]


def dense(inputs: int, outputs: int) -> list[str]:
    return [f"{inputs}-256", "Tanh", "256-256", "Tanh", f"256-{outputs}"]


@pytest.mark.parametrize("dim", [8, 32])
def test_networks_for_digits(dim: int) -> None:
    vae, implicit, wae = (getattr(mnist_networks, make)(dim) for make in MAKERS)
    assert layers(vae.encoder) == dense(784, 2 * dim)
    assert layers(implicit.encoder) == layers(implicit.score_network) == dense(784 + dim, dim)
    assert layers(wae.encoder) == dense(784, dim)
    assert layers(wae.score_network) == dense(dim, dim)
    for model in (vae, implicit, wae):
        assert layers(model.decoder) == dense(dim, 784)
        assert model.observation == BernoulliPixels()
        assert model.sample(3).shape == (3, 784)


def convolutions(channels: int, outputs: int, activation: str, last: bool = True) -> list[str]:
    maps = [f"conv {channels}-64", "conv 64-128", "conv 128-256", "conv 256-512"]
    found = [word for conv in maps for word in (conv, activation)][: None if last else -1]
    return [*found, "8192-512", activation, f"512-{outputs}"]


@pytest.mark.parametrize("as_released", [False, True])
def test_networks_for_faces(as_released: bool) -> None:
    with torch.device("meta"):  # the weights play no part
        vae, implicit, wae = (
            getattr(celeba_networks, make)(as_released=as_released) for make in MAKERS
        )
    assert layers(vae.encoder) == convolutions(3, 64, "ReLU")
    painted = ["32-4096", "ReLU", *convolutions(4, 32, "ReLU", last=not as_released)]
    assert layers(implicit.encoder) == painted
    smooth = ["32-4096", "Softplus", *convolutions(4, 32, "Softplus")]
    assert layers(implicit.score_network) == smooth
    assert layers(wae.encoder) == convolutions(3, 32, "ReLU")
    marginal = ["32-4096", "Softplus", *convolutions(1, 32, "Softplus")]
    assert layers(wae.score_network) == marginal
    maps = ["grow 512-256", "ReLU", "grow 256-128", "ReLU", "grow 128-64", "ReLU", "grow 64-3"]
    rectified = [] if as_released else ["ReLU"]
    for model in (vae, implicit, wae):
        assert layers(model.decoder) == ["32-8192", *rectified, *maps, "Tanh"]
        assert model.decoder(torch.empty(2, 32, device="meta")).shape == (2, 3, 64, 64)
        assert model.observation == NormalPixels(-0.602)


def _on_context(network: nn.Module, context: Any, z: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = network(z, *context)
    return found


def test_score_activation_of_the_paper() -> None:
    """ReLU, as the table says, is refused unless the caller insists: its gradient is wrong."""
    for make in (celeba_networks.make_implicit_vae, celeba_networks.make_wae):
        model = make(2, size=16, width=2, score_activation=nn.ReLU, generator=seeded(0))
        x = torch.rand(32, 3, 16, 16, generator=seeded(1))
        z = torch.randn(32, 2, generator=seeded(2))
        context = (x,) if make is celeba_networks.make_implicit_vae else ()
        with pytest.raises(SmoothnessError, match="relu"):
            network = partial(_on_context, model.score_network, context)
            sm.ScoreMatching()(sm.VectorField(network), z)
        assert model.score_loss(x[:3], sm.ScoreMatching(), check_smoothness=False).shape == (3,)


def test_weights_come_from_the_generator() -> None:
    makers: list[Callable[[torch.Generator], nn.Module]] = [
        lambda g: mnist_networks.make_implicit_vae(2, dim=5, hidden=(4,), generator=g),
        lambda g: mnist_networks.make_wae(2, dim=5, hidden=(4,), generator=g),
        lambda g: celeba_networks.make_implicit_vae(2, size=16, width=2, generator=g),
        lambda g: celeba_networks.make_wae(2, size=16, width=2, generator=g),
    ]
    state = torch.get_rng_state()
    for make in makers:
        a, b, c = (
            torch.cat([p.flatten() for p in make(seeded(k)).parameters()]) for k in (0, 0, 1)
        )
        assert torch.equal(a, b) and (a != c).all()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d, nn.Linear])
def test_weights_follow_torch_s_law(kind: type[nn.Module]) -> None:
    """Uniform with the bounds of a layer that torch draws itself."""
    model = celeba_networks.make_implicit_vae(4, size=32, width=16, generator=seeded(0))
    for layer in (m for m in model.modules() if type(m) is kind):
        bound = nn.init._calculate_correct_fan(layer.weight, "fan_in") ** -0.5
        for p in (layer.weight, layer.bias):
            assert p.abs().max() <= bound
            scaled = p.detach().flatten()[:5000] / bound
            if len(scaled) > 1000:  # standard deviation of a uniform law
                assert_mean(scaled.square(), 1 / 3, detect=0.08)


# Networks of a vector and a context.


def concatenated(net: Any, z: Tensor, x: Tensor) -> Tensor:
    """What the network is by definition: its layers on ``[x, z]``."""
    if isinstance(net, ConditionalMLP):
        return net.rest(net.first(torch.cat([x, z], 1)))
    return net.rest(net.first(torch.cat([x, net.paint(z)], 1)))


CONDITIONAL = {
    "dense": (lambda: ConditionalMLP(2, 5, (7, 6), 4, generator=seeded(0)), (5,)),
    "conv": (
        lambda: ConditionalConv(2, 3, 4, 16, 2, nn.Softplus, generator=seeded(0)),
        (3, 16, 16),
    ),
}


@pytest.mark.parametrize("kind", CONDITIONAL)
def test_split_first_layer_is_the_concatenation(kind: str) -> None:
    make, event = CONDITIONAL[kind]
    net, x, z = make().double(), normal(3, *event), normal(3, 2, seed=1)
    assert near(net(z, x), concatenated(net, z, x))
    many = normal(3, 5, 2, seed=2)
    looped = torch.stack([net(many[:, m], x) for m in range(5)], 1)
    assert near(net(many, x), looped) and looped.shape == (3, 5, 4)
    assert near(net(many[:, None], x), looped[:, None])
    with pytest.raises(ValueError, match=r"z and x must have shapes \(N, ..., 2\)"):
        net(z[:2], x)


@pytest.mark.parametrize("kind", CONDITIONAL)
def test_score_networks_are_traced(kind: str) -> None:
    """Not by double backward; and the divergence is the one in z."""
    event = CONDITIONAL[kind][1]
    net: nn.Module = (
        ConditionalMLP(2, 5, (7, 6), generator=seeded(0))
        if kind == "dense"
        else ConditionalConv(2, 3, None, 16, 2, nn.Softplus, generator=seeded(0))
    )
    net, x, z = net.double(), normal(3, *event), normal(3, 2, seed=1)
    field = sm.VectorField(lambda z: net(z, x), route="traced")
    _, divergence = field.score_and_divergence(z)
    for i in range(3):
        jacobian = torch.autograd.functional.jacobian(
            lambda u, i=i: net(u, x[i : i + 1]), z[i : i + 1]
        )
        assert near(divergence[i], jacobian.reshape(2, 2).trace(), ROUTES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mnist_networks.make_implicit_vae(0), "must be at least 1"),
        (lambda: celeba_networks.make_wae(2, size=20), "multiple of 16, got 20"),
    ],
)
def test_bad_sizes(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

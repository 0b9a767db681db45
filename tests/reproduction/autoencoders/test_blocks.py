"""Convolutions by blocks against torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reproduction.autoencoders.blocks import BlockConv, BlockConvTranspose, convolve
from tests.tolerances import IDENTITY
from tests.training.problems import seeded

LAYERS: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "convolution": (BlockConv, nn.Conv2d, {}),
    "transposed": (BlockConvTranspose, nn.ConvTranspose2d, {"output_padding": 1}),
}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of a function of it in x and in the weights."""
    x = x.clone().requires_grad_()
    y = layer(x)
    return [y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_are_torchs(kind: str, channels: int, bias: bool) -> None:
    by_blocks, usual, options = LAYERS[kind]
    layers = [
        made(channels, 2, 5, stride=2, padding=2, bias=bias, **options).double()
        for made in (by_blocks, usual)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = normal(3, channels, 6, 8, seed=0)
    for found, expected in zip(*(gradients(layer, x) for layer in layers), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=IDENTITY)


def test_the_order_in_memory_is_kept() -> None:
    x, weight = normal(2, 4, 8, 8, seed=0), normal(6, 4, 5, 5, seed=1)
    last = {"memory_format": torch.channels_last}
    assert convolve(x.contiguous(**last), weight.contiguous(**last)).is_contiguous(**last)


def test_another_output_size_is_torchs() -> None:
    layer = BlockConvTranspose(2, 1, 5, stride=2, padding=2, output_padding=1)
    assert layer(torch.zeros(1, 2, 4, 4), output_size=[7, 7]).shape[2:] == (7, 7)

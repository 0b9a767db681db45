"""Layers of einops and transformers of x-transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import einops
import x_transformers as xt
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, energy, vector


class Patches(nn.Module):
    """Einops as functions: patches, a token mixer, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.act = nn.Linear(4, 4), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        p = einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2)
        p = p + einops.repeat(p.mean(1), "b d -> b n d", n=p.shape[1])
        p = einops.einsum(self.act(self.mix(p)), p, "b n d, b m d -> b n m")
        return einops.reduce(p, "b n m -> b n", "mean")


def mixer(reduction: str = "mean", act: Callable[[], nn.Module] = nn.GELU) -> Model:
    layers = [
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
        nn.Linear(4, 8),
        act(),
        EinMix("b n d -> b m d", weight_shape="n m", bias_shape="m", n=4, m=4),
        act(),
        Reduce("b n d -> b d", reduction),
    ]
    return energy(nn.Sequential(*layers), 1, 4, 4, num=4)


def field() -> Model:
    layers = [
        EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=3, d=6),
        nn.SiLU(),
        EinMix("b t d -> b s c", weight_shape="t s d c", t=4, s=4, d=6, c=3),
    ]
    return vector(nn.Sequential(*layers), 4, 3, num=4)


def transformer(**options: Any) -> Callable[[], Model]:
    def build() -> Model:
        layers = xt.Encoder(dim=8, depth=1, heads=2, attn_dim_head=4, **options)
        net = xt.ContinuousTransformerWrapper(
            dim_in=3, dim_out=2, max_seq_len=4, attn_layers=layers
        )
        return energy(net, 4, 3, num=4)

    return build


def vision() -> Model:
    layers = xt.Encoder(dim=8, depth=1, heads=2, attn_dim_head=4)
    net = xt.ViTransformerWrapper(
        image_size=4, patch_size=2, channels=1, num_classes=2, attn_layers=layers
    )
    return energy(net, 1, 4, 4, num=4)


ENTRIES = [
    Entry("einops", "functions", lambda: energy(Patches(), 1, 4, 4, num=4)),
    Entry("einops", "layers, mean", mixer),
    Entry("einops", "layers, max", lambda: mixer("max"), "kinked", "a maximum over tokens"),
    Entry("einops", "layers, ReLU", lambda: mixer(act=nn.ReLU), "kinked", "ReLU"),
    Entry("einops", "EinMix field", field),
    Entry("x-transformers", "encoder", transformer()),
    Entry(
        "x-transformers",
        "encoder, RMSNorm, GLU, rotary",
        transformer(
            use_rmsnorm=True, ff_glu=True, ff_swish=True, rotary_pos_emb=True, rotary_emb_dim=4
        ),
    ),
    Entry("x-transformers", "encoder, ALiBi", transformer(alibi_pos_bias=True)),
    Entry("x-transformers", "encoder, flash", transformer(attn_flash=True)),
    Entry("x-transformers", "encoder, relative positions", transformer(rel_pos_bias=True)),
    Entry(
        "x-transformers",
        "encoder, ReLU squared",
        transformer(ff_relu_squared=True),
        "kinked",
        "ReLU squared",
    ),
    Entry("x-transformers", "ViT", vision),
]

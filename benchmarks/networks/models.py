"""The networks: a U-Net and a diffusion transformer as scores, a ViT and a ResNet as densities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

TIME = 500
"""The time step at which the denoising networks are evaluated."""


class UNet(nn.Module):
    """``diffusers.UNet2DModel`` at one time, with attention at its lowest resolution."""

    def __init__(self, size: int, channels: tuple[int, ...], layers: int) -> None:
        super().__init__()
        module = import_module("diffusers.models.unets.unet_2d")
        plain = len(channels) - 1
        self.net = module.UNet2DModel(
            sample_size=size,
            in_channels=3,
            out_channels=3,
            layers_per_block=layers,
            block_out_channels=channels,
            down_block_types=(*["DownBlock2D"] * plain, "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", *["UpBlock2D"] * plain),
            norm_num_groups=min(32, channels[0] // 4),
            attention_head_dim=min(64, channels[0]),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The score ``(N, 3, size, size)``."""
        score: Tensor = self.net(x, TIME).sample
        return score


class DiT(nn.Module):
    """``diffusers.DiTTransformer2DModel`` at one time, for one class, with patches of 2 x 2."""

    def __init__(self, size: int, heads: int, head: int, layers: int) -> None:
        super().__init__()
        module = import_module("diffusers.models.transformers.dit_transformer_2d")
        self.net = module.DiTTransformer2DModel(
            num_attention_heads=heads,
            attention_head_dim=head,
            in_channels=4,
            out_channels=4,
            num_layers=layers,
            sample_size=size,
            patch_size=2,
        ).eval()

    def forward(self, x: Tensor) -> Tensor:
        """The score ``(N, 4, size, size)``."""
        time, label = (torch.full((len(x),), k, device=x.device) for k in (TIME, 0))
        score: Tensor = self.net(x, timestep=time, class_labels=label).sample
        return score


class ViT(nn.Module):
    """``transformers.ViTModel`` with a linear function of its first token as log-density."""

    def __init__(self, size: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        library = import_module("transformers")
        config = library.ViTConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            image_size=size,
            patch_size=patch,
        )
        self.net = library.ViTModel(config, add_pooling_layer=False).eval()
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant, ``(N,)``."""
        return self.head(self.net(x).last_hidden_state[:, 0]).squeeze(-1)


class ResNet(nn.Module):
    """``transformers.ResNetModel``, SiLU for ReLU and average for maximal pooling, as log-density.

    Batch normalisation has fixed statistics, those of noise, since points must not be coupled.
    """

    def __init__(self, size: int, widths: tuple[int, ...], depth: int) -> None:
        super().__init__()
        library = import_module("transformers")
        config = library.ResNetConfig(
            embedding_size=widths[0],
            hidden_sizes=list(widths),
            depths=[depth] * len(widths),
            layer_type="basic",
            hidden_act="silu",
        )
        self.net = library.ResNetModel(config)
        self.net.embedder.pooler = nn.AvgPool2d(3, 2, 1)
        _replace_relu(self.net)
        with torch.no_grad():
            self.net.train()(torch.randn(32, 3, size, size))
        self.net.eval()
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Log-density up to a constant, ``(N,)``."""
        return self.head(self.net(x).pooler_output.flatten(1)).squeeze(-1)


def _replace_relu(net: nn.Module) -> None:
    """SiLU for every ReLU; the configuration reaches only some of them."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.SiLU())


@dataclass(frozen=True)
class Case:
    """A network of one size, and the shape of its batch.

    Attributes:
        name: of the network.
        size: "tiny", "small" or "large".
        build: its class.
        sizes: arguments of the class.
        event: shape of one point.
        batch: number of points.
        vector: whether it is a score network.
    """

    name: str
    size: str
    build: Callable[..., nn.Module]
    sizes: dict[str, Any]
    event: tuple[int, ...]
    batch: int
    vector: bool

    def make(self, seed: int, device: str) -> tuple[nn.Module, Tensor]:
        """The network and a batch, the same for the same seed; the global state is restored.

        Raises:
            ImportError: if the library of the network is not installed.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build(**self.sizes)
            x = torch.randn(self.batch, *self.event)
        return model.to(device), x.to(device)


ABOUT = {
    "unet": "U-Net",
    "dit": "diffusion transformer",
    "vit": "vision transformer",
    "resnet": "ResNet",
}
"""The networks, by name."""


def _unet(size: str, pixels: int, channels: tuple[int, ...], layers: int, batch: int) -> Case:
    sizes = {"size": pixels, "channels": channels, "layers": layers}
    return Case("unet", size, UNet, sizes, (3, pixels, pixels), batch, True)


def _dit(size: str, pixels: int, heads: int, head: int, layers: int, batch: int) -> Case:
    sizes = {"size": pixels, "heads": heads, "head": head, "layers": layers}
    return Case("dit", size, DiT, sizes, (4, pixels, pixels), batch, True)


def _vit(size: str, pixels: int, patch: int, width: int, layers: int, batch: int) -> Case:
    sizes = {"size": pixels, "patch": patch, "width": width, "layers": layers}
    sizes["heads"] = max(2, width // 64)
    return Case("vit", size, ViT, sizes, (3, pixels, pixels), batch, False)


def _resnet(size: str, pixels: int, widths: tuple[int, ...], depth: int, batch: int) -> Case:
    sizes = {"size": pixels, "widths": widths, "depth": depth}
    return Case("resnet", size, ResNet, sizes, (3, pixels, pixels), batch, False)


CASES = {
    "quick": (
        _unet("tiny", 8, (8, 16), 1, 3),
        _dit("tiny", 4, 2, 4, 1, 3),
        _vit("tiny", 8, 4, 8, 2, 3),
        _resnet("tiny", 16, (4, 8), 1, 3),
    ),
    "cpu": (
        _unet("small", 16, (32, 64), 1, 8),
        _unet("large", 32, (32, 64, 64), 1, 8),
        _dit("small", 16, 4, 32, 4, 8),
        _dit("large", 16, 3, 64, 6, 8),
        _vit("small", 32, 4, 128, 4, 8),
        _vit("large", 32, 4, 192, 6, 8),
        _resnet("small", 32, (32, 64, 128), 1, 16),
        _resnet("large", 64, (32, 64, 128, 256), 2, 16),
    ),
    "cuda": (
        _unet("small", 32, (64, 128, 128), 1, 96),
        _unet("large", 32, (128, 256, 256), 2, 64),
        _dit("small", 32, 6, 64, 6, 32),
        _dit("large", 32, 12, 64, 12, 16),
        _vit("small", 64, 8, 384, 6, 128),
        _vit("large", 64, 8, 768, 12, 32),
        _resnet("small", 64, (64, 128, 256), 2, 256),
        _resnet("large", 64, (64, 128, 256, 512), 2, 256),
    ),
}
"""Two sizes of each network for a CPU and for a GPU, and tiny ones for tests."""


def described(case: Case, parameters: int) -> str:
    """A short description: network, sizes, parameters, batch."""
    words = ", ".join(f"{name} {_words(value)}" for name, value in case.sizes.items())
    return f"{ABOUT[case.name]}, {words}; {parameters / 1e6:.2g} M parameters, batch {case.batch}"


def _words(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)

"""Networks of diffusers and monai, small, as vector fields and log-densities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from monai.networks import nets
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, Through, density, energy, vector


def denoiser(net: nn.Module, *event: int) -> Model:
    """A denoising network at one time, as a vector field."""
    return vector(Through(net, lambda m, x: m(x, torch.tensor(3)).sample), *event, num=3)


def unet(**options: Any) -> Callable[[], Model]:
    sizes = {"sample_size": 4, "in_channels": 2, "out_channels": 2, "layers_per_block": 1}
    sizes |= {"block_out_channels": (4, 8), "norm_num_groups": 2}
    blocks = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 4,
    }
    return lambda: denoiser(diffusers.UNet2DModel(**(sizes | blocks | options)), 2, 4, 4)


def conditioned() -> Model:
    net = diffusers.UNet2DConditionModel(
        sample_size=4,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4, 8),
        norm_num_groups=2,
        cross_attention_dim=6,
        attention_head_dim=2,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    text = torch.randn(1, 3, 6)

    def call(m: nn.Module, x: Tensor) -> Tensor:
        context = text.expand(len(x), -1, -1)
        return m(x, torch.tensor(3), encoder_hidden_states=context).sample

    return vector(Through(net, call), 2, 4, 4, num=3)


def dit() -> Model:
    net = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=4,
        in_channels=2,
        out_channels=2,
        num_layers=1,
        sample_size=4,
        patch_size=2,
        norm_num_groups=2,
        num_embeds_ada_norm=10,
    ).eval()

    def call(x: Tensor) -> Tensor:
        time, label = torch.full((len(x),), 3), torch.zeros(len(x), dtype=torch.long)
        return net(x, timestep=time, class_labels=label).sample

    return vector(call, 2, 4, 4, module=net, num=3)


def reconstruction(net: nn.Module, x: Tensor) -> Tensor:
    """Minus the reconstruction error of an autoencoder at the mode of its posterior."""
    posterior = net.encode(x).latent_dist
    back = net.decode(posterior.mode()).sample
    return -(x - back).square().flatten(1).sum(-1) - posterior.kl()


def autoencoder() -> Model:
    net = diffusers.AutoencoderKL(
        in_channels=1,
        out_channels=1,
        block_out_channels=(4,),
        latent_channels=2,
        norm_num_groups=2,
        sample_size=4,
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",),
    )
    return density(Through(net, reconstruction), 1, 4, 4, num=3)


def tiny_autoencoder() -> Model:
    net = diffusers.AutoencoderTiny(
        in_channels=1,
        out_channels=1,
        encoder_block_out_channels=(4,),
        decoder_block_out_channels=(4,),
        num_encoder_blocks=(1,),
        num_decoder_blocks=(1,),
        latent_channels=2,
    )
    return energy(Through(net, lambda m, x: m.encode(x).latents), 1, 4, 4, num=4)


def sequence_unet() -> Model:
    net = diffusers.UNet1DModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=2,
        use_timestep_embedding=True,
        down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
        up_block_types=("UpResnetBlock1D", "UpResnetBlock1D"),
        act_fn="swish",
        mid_block_type="MidResTemporalBlock1D",
        out_block_type="OutConv1DBlock",
        time_embedding_type="positional",
    )
    return denoiser(net, 2, 8)


def plain(make: Callable[[], nn.Module], *event: int, **options: Any) -> Callable[[], Model]:
    return lambda: energy(Through(make().eval(), first_result), *event, **({"num": 3} | options))


def first_result(net: nn.Module, x: Tensor) -> Tensor:
    """The first result of a network that may have several; of an autoencoder, without noise."""
    out = net.reconstruct(x) if hasattr(net, "reconstruct") else net(x)
    return out if isinstance(out, Tensor) else out[0]


UNET = {"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "channels": (4, 8), "strides": (2,)}


def monai_unet(act: Any, norm: str = "instance") -> Callable[[], nn.Module]:
    return lambda: nets.UNet(num_res_units=1, act=act, norm=norm, **UNET)


def diffusion_unet() -> nn.Module:
    return nets.DiffusionModelUNet(
        2, 1, 1, (1, 1), (4, 8), (False, True), norm_num_groups=2, num_head_channels=4
    )


def at_time(net: nn.Module, x: Tensor) -> Tensor:
    return net(x, torch.full((len(x),), 4))


ENTRIES = [
    Entry("diffusers", "UNet2DModel", unet()),
    Entry(
        "diffusers",
        "UNet2DModel, Fourier time, no attention",
        unet(
            time_embedding_type="fourier",
            down_block_types=("DownBlock2D",) * 2,
            up_block_types=("UpBlock2D",) * 2,
        ),
    ),
    Entry("diffusers", "UNet2DModel, ReLU", unet(act_fn="relu"), "kinked", "ReLU in a field"),
    Entry("diffusers", "UNet2DConditionModel", conditioned),
    Entry("diffusers", "UNet1DModel", sequence_unet),
    Entry("diffusers", "DiT", dit),
    Entry("diffusers", "AutoencoderKL", autoencoder),
    Entry("diffusers", "AutoencoderTiny, ReLU", tiny_autoencoder, "kinked", "ReLU"),
    Entry("monai", "UNet, swish", plain(monai_unet("swish"), 1, 8, 8)),
    Entry("monai", "UNet, PReLU", plain(monai_unet("prelu"), 1, 8, 8), "kinked", "PReLU"),
    Entry(
        "monai",
        "BasicUNet, GELU",
        plain(lambda: nets.BasicUNet(2, 1, 1, (4,) * 6, act="gelu"), 1, 32, 32),
        "kinked",
        "max pooling",
    ),
    Entry(
        "monai",
        "AutoEncoder, swish",
        plain(lambda: nets.AutoEncoder(2, 1, 1, (4, 4), (2, 2), act="swish"), 1, 8, 8),
    ),
    Entry(
        "monai",
        "DiffusionModelUNet",
        lambda: vector(Through(diffusion_unet(), at_time), 1, 4, 4, num=3),
    ),
    Entry(
        "monai",
        "SegResNet, ReLU",
        plain(
            lambda: nets.SegResNet(
                2, 4, 1, 1, norm=("group", {"num_groups": 2}), blocks_down=(1, 1), blocks_up=(1,)
            ),
            1,
            8,
            8,
        ),
        "kinked",
        "ReLU",
    ),
    Entry(
        "monai",
        "ViT",
        plain(lambda: nets.ViT(1, (8, 8), (4, 4), 8, 16, 1, 2, spatial_dims=2), 1, 8, 8),
    ),
    Entry(
        "monai",
        "FullyConnectedNet, tanh",
        plain(lambda: nets.FullyConnectedNet(3, 2, (8, 8), act="tanh"), 3, num=6),
    ),
    Entry(
        "monai",
        "AutoencoderKL",
        plain(
            lambda: nets.AutoencoderKL(
                2,
                1,
                1,
                (1,),
                (4,),
                (False,),
                2,
                norm_num_groups=2,
                with_encoder_nonlocal_attn=False,
                with_decoder_nonlocal_attn=False,
            ),
            1,
            4,
            4,
        ),
    ),
]

"""Image networks of timm and torchvision, with few channels, evaluated on small images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision
from torch import nn

from tests.zoo.entry import Energy, Entry, Model, density


def settled(net: nn.Module, *event: int) -> nn.Module:
    """The net in evaluation mode, after one batch for its running statistics."""
    net = net.double().train()
    with torch.no_grad():
        net(torch.randn(8, *event))
    return net.eval()


def of(make: Callable[[], nn.Module], *event: int, **options: Any) -> Callable[[], Model]:
    return lambda: density(Energy(settled(make(), *event)), *event, num=3, **options)


def resnet(act: Any, **options: Any) -> Callable[[], nn.Module]:
    block = timm.models.resnet.BasicBlock
    return lambda: timm.models.ResNet(
        block,
        [1, 1, 1, 1],
        channels=(4, 4, 8, 8),
        num_classes=2,
        in_chans=1,
        act_layer=act,
        stem_width=4,
        **options,
    )


def drop_path() -> Model:
    net = timm.models.VisionTransformer(
        8, 4, 1, 2, embed_dim=8, depth=2, num_heads=2, drop_path_rate=0.5
    ).train()
    return density(Energy(net), 1, 8, 8, num=3)


def coupled() -> Model:
    net = torchvision.models.efficientnet_b0(num_classes=2).features[:2]
    return density(Energy(net.double().train()), 3, 8, 8, num=4)


VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
MIXER = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "num_blocks": 1}
NEXT = {"depths": (1, 1, 1, 1), "dims": (4, 4, 8, 8), "patch_size": 2}


def timm_entry(name: str, build: Callable[[], Model], *rest: Any, **options: Any) -> Entry:
    return Entry("timm", name, build, *rest, **options)


ENTRIES = [
    timm_entry(
        "ViT", of(lambda: timm.models.VisionTransformer(in_chans=1, num_classes=2, **VIT), 1, 8, 8)
    ),
    timm_entry("ViT, drop path, training", drop_path, random=True),
    timm_entry(
        "MLP-Mixer", of(lambda: timm.models.MlpMixer(in_chans=1, num_classes=2, **MIXER), 1, 8, 8)
    ),
    timm_entry(
        "gMLP",
        of(
            lambda: timm.models.MlpMixer(
                in_chans=1,
                num_classes=2,
                mlp_ratio=2,
                block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
                mlp_layer=timm.layers.GatedMlp,
                **MIXER,
            ),
            1,
            8,
            8,
        ),
    ),
    timm_entry("ConvNeXt", of(lambda: timm.models.ConvNeXt(1, 2, **NEXT), 1, 32, 32)),
    timm_entry("ResNet, SiLU", of(resnet(nn.SiLU), 1, 8, 8), "kinked", "max pooling"),
    timm_entry("ResNet, ReLU", of(resnet(nn.ReLU), 1, 8, 8), "kinked", "ReLU and max pooling"),
    timm_entry(
        "BasicBlock, SiLU",
        of(lambda: timm.models.resnet.BasicBlock(4, 4, act_layer=nn.SiLU), 4, 4, 4),
    ),
    timm_entry(
        "EfficientNet block",
        of(
            lambda: timm.models._efficientnet_blocks.InvertedResidual(
                4, 4, act_layer=nn.SiLU, se_layer=timm.models._efficientnet_blocks.SqueezeExcite
            ),
            4,
            4,
            4,
        ),
    ),
    timm_entry(
        "MobileNetV3 block, Hardswish",
        of(
            lambda: timm.models._efficientnet_blocks.InvertedResidual(4, 4, act_layer=nn.Hardswish),
            4,
            4,
            4,
            points=lambda x: 3 * x,
        ),
        "kinked",
        "Hardswish",
    ),
    timm_entry(
        "PoolFormer block",
        of(
            lambda: timm.models.metaformer.MetaFormerBlock(
                4, token_mixer=timm.models.metaformer.Pooling, mlp_act=nn.GELU
            ),
            4,
            4,
            4,
        ),
    ),
    timm_entry(
        "Swin block",
        of(
            lambda: timm.models.swin_transformer.SwinTransformerBlock(
                8, (4, 4), num_heads=2, window_size=2, shift_size=1
            ),
            4,
            4,
            8,
        ),
    ),
    timm_entry(
        "attention pooling", of(lambda: timm.layers.AttentionPoolLatent(8, num_heads=2), 4, 8)
    ),
    Entry(
        "torchvision",
        "SwinTransformer block",
        of(
            lambda: torchvision.models.swin_transformer.SwinTransformerBlock(8, 2, [2, 2], [1, 1]),
            4,
            4,
            8,
        ),
    ),
    Entry(
        "torchvision",
        "VisionTransformer",
        of(lambda: torchvision.models.VisionTransformer(8, 4, 1, 2, 8, 16, num_classes=2), 3, 8, 8),
    ),
    Entry(
        "torchvision",
        "ConvNeXt block",
        of(lambda: torchvision.models.convnext.CNBlock(4, 1.0, 0.0), 4, 4, 4),
    ),
    Entry(
        "torchvision", "EfficientNet stem, trained", coupled, "coupled", "batch norm in training"
    ),
    Entry(
        "torchvision",
        "EfficientNet stem, evaluated",
        of(lambda: torchvision.models.efficientnet_b0(num_classes=2).features[:2], 3, 8, 8),
    ),
    Entry(
        "torchvision",
        "DenseNet block, ReLU",
        of(lambda: torchvision.models.densenet._DenseLayer(4, 2, 2, 0.0), 4, 4, 4),
        "kinked",
        "ReLU",
    ),
    Entry(
        "torchvision",
        "MLP, SiLU",
        of(lambda: torchvision.ops.MLP(4, [8, 2], activation_layer=nn.SiLU, inplace=None), 4),
    ),
]

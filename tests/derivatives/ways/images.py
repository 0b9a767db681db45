"""Convolutions, pooling, padding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.derivatives.ways.base import Way

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
    Way(
        "F.fold, as many channels as points",
        lambda z, p: F.fold(z, (2, 3), 2) * p(3),
        event=(12, 2),
    ),
    Way("max_pool2d", lambda z, p: F.max_pool2d(z, 2), event=(1, 2, 4), kinked=True),
    Way("avg_pool3d", lambda z, p: F.avg_pool3d(z, 2), event=(1, 2, 2, 2)),
    Way(
        "adaptive_avg_pool3d", lambda z, p: F.adaptive_avg_pool3d(z, (1, 2, 1)), event=(1, 2, 2, 2)
    ),
    Way("lp_pool2d", lambda z, p: F.lp_pool2d(z.exp(), 2.0, 2), event=(1, 2, 2), kinked=True),
    Way(
        "interpolate bicubic",
        lambda z, p: F.interpolate(z, size=(3, 4), mode="bicubic", align_corners=True),
        event=(1, 2, 3),
    ),
    Way(
        "interpolate area", lambda z, p: F.interpolate(z, size=(1, 2), mode="area"), event=(1, 2, 3)
    ),
    Way("interpolate of a row", lambda z, p: F.interpolate(z, size=5, mode="linear"), event=(2, 3)),
    Way(
        "interpolate, antialiased",
        lambda z, p: F.interpolate(z, size=(2, 2), mode="bilinear", antialias=True),
        event=(1, 3, 3),
    ),
    Way("pad replicate", lambda z, p: F.pad(z, (1, 1), mode="replicate"), event=(2, 3)),
    Way("pad of images", lambda z, p: F.pad(z, (1, 0, 0, 1), mode="reflect"), event=(1, 2, 2)),
    Way(
        "adaptive_max_pool2d",
        lambda z, p: F.adaptive_max_pool2d(z, (1, 2)),
        event=(1, 2, 4),
        kinked=True,
    ),
    Way(
        "adaptive_max_pool3d",
        lambda z, p: F.adaptive_max_pool3d(z, 1),
        event=(1, 2, 2, 2),
        kinked=True,
    ),
    Way("max_pool1d", lambda z, p: F.max_pool1d(z, 2), event=(1, 4), kinked=True),
    Way("max_pool2d module", lambda z, p: nn.MaxPool2d(2, 1, 1)(z), event=(2, 2, 2), kinked=True),
    Way("max_pool3d", lambda z, p: F.max_pool3d(z, 2), event=(1, 2, 2, 2), kinked=True),
    Way(
        "fractional_max_pool2d",
        lambda z, p: F.fractional_max_pool2d(
            z, 2, output_size=2, _random_samples=torch.full((len(z), 1, 2), 0.3).double()
        ),
        event=(1, 3, 3),
        kinked=True,
    ),
    Way(
        "fractional_max_pool3d",
        lambda z, p: F.fractional_max_pool3d(
            z, 1, output_size=1, _random_samples=torch.full((len(z), 1, 3), 0.3).double()
        ),
        event=(1, 2, 2, 2),
        kinked=True,
    ),
    Way(
        "max_unpool2d",
        lambda z, p: (lambda y, i: F.max_unpool2d(y, i, 2))(
            *F.max_pool2d(z, 2, return_indices=True)
        ),
        event=(1, 2, 4),
        kinked=True,
    ),
    Way(
        "grid_sample, traced image",
        lambda z, p: F.grid_sample(
            z, 0.5 * torch.tanh(p(1, 2, 2, 2)).expand(len(z), 2, 2, 2), align_corners=True
        ),
        event=(1, 3, 3),
        traced=None,
    ),
    Way(
        "conv2d traced weight",
        lambda z, p: torch.stack([F.conv2d(p(1, 2, 3, 3), r[None])[0] for r in z]),
        event=(2, 2, 2),
        traced=None,
    ),
    Way("local_response_norm", lambda z, p: F.local_response_norm(z, 2), event=(2, 3)),
]

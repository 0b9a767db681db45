"""Whole models."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.derivatives.ways.base import Way
from tests.derivatives.ways.layers import norm_by_hand


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


MODELS = [
    Way("deep kernel", kernel_mixture),
    Way("kernel by expansion", kernel_by_expansion),
    Way("additive couplings", coupling_flow, event=(4,)),
    Way("residual images", residual_images, event=(2, 3, 3), written_out=residual_images_by_hand),
]

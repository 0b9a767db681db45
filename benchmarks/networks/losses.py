"""The losses that are timed: this library's, and the same written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import scorematching as sm
from scorematching.fields import Field
from scorematching.objectives import Objective

SIGMA = 0.1
NUMS = (1, 4)
"""Directions per point."""


class Contender(NamedTuple):
    """One loss.

    Attributes:
        library: "ours" or "bare" for nested torch.autograd.grad.
        name: "DSM" or "SSM-VR".
        num: M, directions per point; zero where there are none.
        objective: the loss itself.
    """

    library: str
    name: str
    num: int
    objective: Objective


def contenders(nums: tuple[int, ...] = NUMS) -> Iterator[Contender]:
    """All losses."""
    yield Contender("bare", "DSM", 0, Denoising())
    for num in nums:
        yield Contender("ours", "SSM-VR", num, sm.SlicedScoreMatchingVR(num_projections=num))
        yield Contender("bare", "SSM-VR", num, Tiled(num))


def field_of(model: nn.Module, vector: bool) -> Field:
    """The network as a score or as a log-density."""
    return sm.VectorField(model) if vector else sm.LogDensityField(model)


class Tiled(Objective):
    """SSM-VR by double backward, as it is usually written."""

    def __init__(self, num: int) -> None:
        self.num = num

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Independent signs ``(M, N, *event)``."""
        return signs(x, self.num, generator)

    def loss(self, field: Field, x: Tensor, noise: Tensor) -> Tensor:
        """Losses ``(N,)``."""
        return sliced(field.model.call, x, noise, isinstance(field, sm.VectorField))


class Denoising(Objective):
    """DSM, as it is usually written."""

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise."""
        return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    def loss(self, field: Field, x: Tensor, noise: Tensor) -> Tensor:
        """Losses ``(N,)``."""
        return denoising(field.model.call, x, noise, isinstance(field, sm.VectorField))


def signs(x: Tensor, num: int, generator: torch.Generator | None = None) -> Tensor:
    """Independent signs ``(M, N, *event)``."""
    shape = (num, *x.shape)
    return 2 * torch.randint(0, 2, shape, generator=generator, dtype=x.dtype, device=x.device) - 1


def sliced(model: Callable[..., Any], x: Tensor, v: Tensor, vector: bool) -> Tensor:
    """SSM-VR losses ``(N,)`` by nested gradients, on the batch repeated for every direction.

    Fused attention cannot be differentiated twice, so attention is that of matrix products.
    """
    tiled, v = x.repeat(len(v), *[1] * (x.ndim - 1)).requires_grad_(), v.flatten(0, 1)
    with sdpa_kernel(SDPBackend.MATH):
        y = model(tiled)
    s = y if vector else _gradient(y.sum(), tiled)
    curvature = (_gradient((s * v).sum(), tiled) * v).flatten(1).sum(-1)
    return (0.5 * s.flatten(1).square().sum(-1) + curvature).reshape(-1, len(x)).mean(0)


def denoising(model: Callable[..., Any], x: Tensor, noise: Tensor, vector: bool) -> Tensor:
    """DSM losses ``(N,)``; a score network may use fused attention."""
    noisy = x + SIGMA * noise
    if vector:
        s = model(noisy)
    else:
        with sdpa_kernel(SDPBackend.MATH):
            y = model(noisy.requires_grad_())
        s = _gradient(y.sum(), noisy)
    return 0.5 * (s + noise / SIGMA).flatten(1).square().sum(-1)


def _gradient(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, create_graph=True)[0]

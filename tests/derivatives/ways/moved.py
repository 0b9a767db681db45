"""Operations on tensors whose batch axis is the second, between two others of length 3 and 4."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.derivatives.ways.base import EVEN, INDEX, Op, Way, constants


def moved(op: Op) -> Op:
    """The operation and a curved function, with the points along the second axis."""
    return lambda z, p: torch.exp(0.3 * op(z.movedim(0, 1), p)).sum((0, 2)) * p(1, k=7)


OPERATIONS: dict[str, Op] = {
    "sum": lambda h, p: h.sum(0, keepdim=True) * h,
    "sum of the last": lambda h, p: h.sum(2, keepdim=True) * h,
    "softmax": lambda h, p: torch.softmax(h, 0) * p(4),
    "logsumexp": lambda h, p: torch.logsumexp(h, 0, keepdim=True) * h,
    "cumsum": lambda h, p: h.cumsum(0) * p(4),
    "cumprod": lambda h, p: torch.sin(h).cumprod(0) * p(4),
    "prod": lambda h, p: torch.sin(h).prod(0, keepdim=True) * p(4),
    "norm": lambda h, p: h.norm(dim=0, keepdim=True) * p(4),
    "var": lambda h, p: h.var(0, keepdim=True) * p(4),
    "flip": lambda h, p: h.flip(0) * h,
    "roll": lambda h, p: h.roll(1, 0) * h,
    "index": lambda h, p: h[INDEX] * p(4),
    "mask": lambda h, p: h[EVEN] * p(4),
    "slice": lambda h, p: h[1:] * p(4),
    "gather": lambda h, p: h.gather(0, INDEX[:, None, None].expand(3, *h.shape[1:])) * p(4),
    "index_add": lambda h, p: torch.index_add(h, 0, INDEX, torch.sin(h)) * p(4),
    "write": lambda h, p: torch.select_scatter(h, torch.sin(h[0]), 0, 2) * p(4),
    "repeat": lambda h, p: h.repeat(2, 1, 1) * p(4),
    "repeat_interleave": lambda h, p: h.repeat_interleave(2, 0) * p(4),
    "chunk": lambda h, p: torch.mul(*h.chunk(2, 2)),
    "unbind": lambda h, p: torch.stack(h.unbind(0)[::-1]) * p(4),
    "stack": lambda h, p: torch.stack([h, torch.sin(h)]).flatten(0, 0).movedim(0, -1).flatten(2),
    "cat": lambda h, p: torch.cat([h, torch.sin(h)], 0) * p(4),
    "matmul": lambda h, p: h @ p(4, 2),
    "matmul on the left": lambda h, p: (p(5, 3) @ h.flatten(1)).unflatten(1, h.shape[1:]),
    "linear": lambda h, p: F.linear(h, p(2, 4), p(2)),
    "layer_norm": lambda h, p: F.layer_norm(h, (4,)) * p(4),
    "einsum": lambda h, p: torch.einsum("anb,ac->cnb", h, p(3, 2)),
    "einsum of two": lambda h, p: torch.einsum("anb,anb->an", h, torch.sin(h))[..., None],
    "where": lambda h, p: torch.where(EVEN[:, None, None], h, torch.sin(h) * p(4)),
    "pad": lambda h, p: F.pad(h, (1, 1)),
    "pad of another axis": lambda h, p: F.pad(h, (0, 0, 0, 0, 1, 0), value=0.3),
    "average pooling": lambda h, p: F.avg_pool1d(h, 2) * p(2),
    "adaptive pooling": lambda h, p: F.adaptive_avg_pool1d(h, 3) * p(3),
    "interpolation": lambda h, p: F.interpolate(h, size=3, mode="linear") * p(3),
    "sliding windows": lambda h, p: h.unfold(2, 2, 1).flatten(2) * p(6),
    "windows of another axis": lambda h, p: h.unfold(0, 2, 1).flatten(2) * p(8),
    "diag_embed": lambda h, p: torch.diag_embed(h).flatten(2) @ p(16, 2),
    "fft": lambda h, p: torch.fft.rfft(h, dim=0).real * constants(4),
    "determinant": lambda h, p: torch.logdet(
        3 * torch.eye(3, dtype=h.dtype) + (h.permute(1, 0, 2) @ h.permute(1, 2, 0))
    )[None, :, None],
    "sigmoid in place": lambda h, p: (h * p(4)).sigmoid_(),
    "expansion": lambda h, p: h[:, :, :1].expand(3, -1, 2) * p(2),
}


def _way(name: str, op: Any) -> Way:
    return Way(f"moved {name}", moved(op), event=(3, 4), curved_after=False)


MOVED = [_way(name, op) for name, op in OPERATIONS.items()]

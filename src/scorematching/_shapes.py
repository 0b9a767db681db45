"""Event axes: the trailing axes of a point, flattened where an equation says "dot product"."""

import torch
from torch import Tensor

from scorematching._precision import without_autocast


def event_axes(x: Tensor) -> int:
    """Number of axes of one point, for points ``x: (N, *event)``."""
    return x.ndim - 1


def dimension(x: Tensor) -> int:
    """D, the number of coordinates of one point, for points ``x: (N, *event)``."""
    return x.shape[1:].numel()


def flatten_event(value: Tensor, axes: int) -> Tensor:
    """``(..., *event) -> (..., D)``, for an event of ``axes`` axes."""
    return value.flatten(start_dim=value.ndim - axes)


def inner(a: Tensor, b: Tensor, axes: int) -> Tensor:
    """Dot product over the event, ``(..., *event) -> (...)``, broadcasting the rest."""
    return flatten_event(a * b, axes).sum(-1)


def project(score: Tensor, v: Tensor) -> Tensor:
    """The score along directions, ``(N, *F, *event), (M, N, *event) -> (N, *F, M)``.

    In the wider of their precisions (a network may return double precision), also under autocast: a
    loss has the square of it, which overflows in float16.
    """
    axes = v.ndim - 2
    s, v = flatten_event(score, axes), flatten_event(v, axes)
    wide = torch.promote_types(s.dtype, v.dtype)
    with without_autocast(s):
        return torch.einsum("n...d,mnd->n...m", s.to(wide), v.to(wide))

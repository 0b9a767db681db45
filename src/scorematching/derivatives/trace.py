"""Exact divergences: the trace of a Jacobian by tangents along a whole basis.

The tangents are taken in chunks that fit a memory budget. To train, chunks beyond the first are
recomputed in the backward pass instead of kept. To evaluate, where a model reads x through one
linear layer only, with fewer outputs than D, nothing happens outside the row space of its weight,
and an orthonormal basis of that space is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scorematching._shapes import dimension, flatten_event
from scorematching.derivatives.pairing import Jet, Tangents, run
from scorematching.derivatives.tracing import Bend, Push, Tape, Traced, find_traced, plain

Chunk = Callable[[Tensor], tuple[Tensor, Tensor]]
"""``directions (c, 1, *event) -> (projected scores (c, N, *F), sum of curvatures (N, *F))``."""


class Survey(Tape):
    """Looks at a model before the work begins: its size, and how it reads x.

    Attributes:
        numbers: how many numbers all traced values have together.
        largest: how many the largest one has.
        readers: the weights of the linear layers that read x; None for any other operation.
    """

    def __init__(self, x: Tensor) -> None:
        """Start an empty survey of a model at points x."""
        super().__init__(x.shape[0])
        self.points = x
        self.numbers = self.largest = x.numel()
        self.readers: list[Tensor | None] = []
        self._weight: Tensor | None = None

    def affine(self, x: Traced, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Keep the weight of a layer that reads x."""
        self._weight = weight
        return super().affine(x, weight, bias)

    def emit(
        self, inputs: Any, y: Tensor, act: Push, bend: Bend | None, axis: int | None
    ) -> Traced:
        """Count y."""
        self.numbers += y.numel()
        self.largest = max(self.largest, y.numel())
        self.readers += [self._weight for x in inputs if x.p is self.points]
        self._weight = None
        return Traced(y, None, self, axis)

    def generic(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Traced:
        """Count an operation in no table."""
        return self.emit(find_traced(args, kwargs), func(*plain(args), **kwargs), plain, None, None)


def basis(x: Tensor, survey: Survey) -> Tensor:
    """Orthonormal directions that hold all the curvature, ``(K, 1, *event)`` with K <= D."""
    d = dimension(x)
    (weight,) = survey.readers if len(survey.readers) == 1 else (None,)
    # To train, the row space would have to be differentiated along with the weight.
    if not torch.is_grad_enabled() and weight is not None and weight.shape[0] < d == x.shape[-1]:
        return torch.linalg.qr(weight.detach().mT).Q.mT[:, None]
    return torch.eye(d, dtype=x.dtype, device=x.device).reshape(d, 1, *x.shape[1:])


def log_density_chunk(f: Callable[[Any], Any], x: Tensor) -> Chunk:
    """Curvatures of a log-density, by second-order jets."""

    def chunk(directions: Tensor) -> tuple[Tensor, Tensor]:
        y = run(f, x, directions, Jet(x.shape[0]))
        num = directions.shape[0]
        assert y.u is not None
        second = torch.zeros_like(y.p) if y.s is None else y.s.expand_as(y.p)
        return y.u.expand(num, *y.p.shape), num * second

    return chunk


def vector_chunk(h: Callable[[Any], Any], x: Tensor) -> Chunk:
    """Curvatures of a vector field, by first-order tangents."""

    def chunk(directions: Tensor) -> tuple[Tensor, Tensor]:
        y = run(h, x, directions, Tangents(x.shape[0]))
        assert y.u is not None
        axes = x.ndim - 1
        curvature = flatten_event(directions * y.u, axes).sum(-1).expand(-1, x.shape[0])
        return flatten_event(directions * y.p, axes).sum(-1), curvature.sum(0)

    return chunk


def accumulate(
    chunk: Chunk, directions: Tensor, size: int, training: bool
) -> tuple[Tensor, Tensor]:
    """A chunk function over all directions, ``size`` at a time."""
    parts = directions.split(size)
    if training and len(parts) > 1:
        results = [checkpoint(chunk, part, use_reentrant=False) for part in parts]
    else:
        results = [chunk(part) for part in parts]
    projected, curvature = zip(*results)
    return torch.cat(projected), sum(curvature)


def chunk_size(x: Tensor, survey: Survey, training: bool, max_memory: int | None) -> int:
    """How many tangents at a time stay within the budget, in bytes.

    To train, every operation keeps about three numbers per tangent and value; to evaluate, only
    those of the operation at hand are alive.
    """
    if max_memory is None:
        max_memory = _default_budget(x)
    alive = 3 * survey.numbers if training else 6 * survey.largest
    return max(1, max_memory // (alive * x.element_size()))


def _default_budget(x: Tensor) -> int:
    """A fifth of a GPU's memory; a quarter of a gigabyte, which caches like, elsewhere."""
    if x.is_cuda:
        return torch.cuda.get_device_properties(x.device).total_memory // 5
    return 1 << 28

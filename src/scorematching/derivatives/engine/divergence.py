"""Exact divergences: the trace of a Jacobian by tangents along a whole basis.

The tangents are taken in chunks that fit a memory budget. In training, chunks that do not fit all
together are recomputed in the backward pass instead of kept. In evaluation, a model that reads x
only through one linear layer with fewer outputs than D does not change outside the row space of
its weight, and an orthonormal basis of that space is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scorematching._shapes import dimension, flatten_event
from scorematching._tracing import saved_tensors_hooks
from scorematching.derivatives.engine.jet import Jet, second_derivative
from scorematching.derivatives.engine.pairing import Tangents
from scorematching.derivatives.engine.tape import Axis, Inputs, Push, Second, Tape
from scorematching.derivatives.engine.trace import Traced

Chunk = Callable[[Tensor], tuple[Tensor, Tensor]]
"""``directions (c, 1, *event) -> (projected scores (c, N, *F), sum of curvatures (N, *F))``."""


class Survey(Tape):
    """Counts the numbers that a model computes, and records how it reads x.

    Attributes:
        numbers: how many numbers all traced values have together.
        largest: how many the largest one has.
        readers: the weights of the linear layers that read x; None for any other operation.
        hooked: whether the model recomputes or moves what autograd saves (torch's checkpoint).
    """

    def __init__(self, x: Tensor, graphs: dict[Any, Any] | None = None) -> None:
        super().__init__(x.shape[0], graphs)
        self.points = x
        self.numbers = self.largest = x.numel()
        self.readers: list[Tensor | None] = []
        self._weight: Tensor | None = None
        self.hooked = False

    def affine(self, x: Traced, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Keep the weight for `emit`, which is called next and knows whether the layer reads x."""
        self._weight = weight
        return super().affine(x, weight, bias)

    def emit(self, inputs: Inputs, y: Tensor, push: Push, second: Second, axis: Axis) -> Traced:
        """Count y, and list the operation among the readers if it reads the points."""
        self.hooked = self.hooked or saved_tensors_hooks() is not None
        self.numbers += y.numel()
        self.largest = max(self.largest, y.numel())
        self.readers += [self._weight for x in inputs if x.p is self.points]
        self._weight = None
        return Traced(y, None, self, axis)


def basis(x: Tensor, survey: Survey) -> Tensor:
    """Orthonormal directions that hold all the curvature, ``(K, 1, *event)`` with K <= D."""
    d = dimension(x)
    (weight,) = survey.readers if len(survey.readers) == 1 else (None,)
    # To train, the row space would have to be differentiated along with the weight.
    if not torch.is_grad_enabled() and weight is not None and weight.shape[0] < d == x.shape[-1]:
        return torch.linalg.qr(weight.detach().mT).Q.mT[:, None]
    return torch.eye(d, dtype=x.dtype, device=x.device).reshape(d, 1, *x.shape[1:])


def log_density_chunk(model: Any, x: Tensor) -> Chunk:
    """Curvatures of a log-density, by second-order jets."""

    def chunk(directions: Tensor) -> tuple[Tensor, Tensor]:
        _, y = model.trace(x, directions, partial(Jet, x.shape[0]))
        num = directions.shape[0]
        return y.u.expand(num, *y.p.shape), num * second_derivative(y)

    return chunk


def vector_chunk(model: Any, x: Tensor) -> Chunk:
    """Curvatures of a vector field, by first-order tangents."""

    def chunk(directions: Tensor) -> tuple[Tensor, Tensor]:
        _, y = model.trace(x, directions, partial(Tangents, x.shape[0]))
        axes = x.ndim - 1
        curvature = flatten_event(directions * y.u, axes).sum(-1).expand(-1, x.shape[0])
        return flatten_event(directions * y.p, axes).sum(-1), curvature.sum(0)

    return chunk


class Plan(NamedTuple):
    """How to go through the directions.

    Attributes:
        size: how many at a time.
        recompute: whether to run a chunk again in the backward pass instead of keeping it.
    """

    size: int
    recompute: bool


def accumulate(chunk: Chunk, directions: Tensor, plan: Plan, x: Tensor) -> tuple[Tensor, Tensor]:
    """A chunk function over all directions; each repeats the random numbers of the first."""
    parts = directions.split(plan.size)
    results = []
    for i, part in enumerate(parts):
        # Only the last chunk leaves the random state as one evaluation would.
        with same_random_numbers(x, enabled=i < len(parts) - 1):
            if plan.recompute:
                results.append(checkpoint(chunk, part, use_reentrant=False))
            else:
                results.append(chunk(part))
    projected, curvature = zip(*results)
    return torch.cat(projected), sum(curvature)


def same_random_numbers(x: Tensor, enabled: bool = True) -> AbstractContextManager[None]:
    """A region after which random numbers repeat: the state at its start is restored."""
    devices = [x.device] if x.is_cuda else []
    return torch.random.fork_rng(devices=devices, enabled=enabled)


def plan(x: Tensor, survey: Survey, num: int, training: bool, max_memory: int | None) -> Plan:
    """How to take ``num`` directions within a budget of memory, in bytes.

    To train, every operation keeps about three numbers per tangent and value; to evaluate, only
    those of the current operation exist. Without a budget, that of `_default_budget` is used.
    """
    each = x.element_size() * (3 * survey.numbers if training else 6 * survey.largest)
    chunk, kept = (max_memory, max_memory) if max_memory is not None else _default_budget(x)
    size = max(1, chunk // each)
    # Checkpoints of the model do not nest with those of chunks.
    return Plan(size, training and num > size and num * each > kept and not survey.hooked)


def _default_budget(x: Tensor) -> tuple[int, int]:
    """Bytes for one chunk, and for all chunks that are kept for the backward pass."""
    if x.is_cuda:
        total = torch.cuda.get_device_properties(x.device).total_memory
        return total // 5, total // 2
    return 1 << 28, 1 << 32

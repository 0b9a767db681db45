"""Directions with many zeros, and a linear layer that does not multiply by them.

`SplitRademacher` splits one sign vector w at random among the M directions of a point:

    ``v_j = sqrt(M) w`` on the coordinates of direction j, zero elsewhere,

where every coordinate belongs to one direction. The products ``W v_j`` of a linear layer then cost
as much for all M directions together as for one, since each direction needs its own columns of W
only. `Directions` is a tensor that carries what this product has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching._shapes import dimension
from scorematching._tracing import is_tracing

MIN_PRODUCTS = 1 << 21
"""Multiplications of a linear layer with M directions from which on the product by parts pays."""


@dataclass(frozen=True)
class Parts:
    """Which direction has which coordinates.

    Attributes:
        total: the sum of all directions of a point, ``(N, D)``.
        coordinates: those of every direction, ``(M, K)``, where the number D stands for none.
    """

    total: Tensor
    coordinates: Tensor

    def dense(self) -> Tensor:
        """All directions with their zeros, ``(M, N, D)``."""
        d = self.total.shape[1]
        mine = self.total.new_zeros(len(self.coordinates), d + 1)
        return mine.scatter_(1, self.coordinates, 1.0)[:, None, :d] * self.total

    def through(self, weight: Tensor) -> Tensor:
        """``W v_j`` for weights ``(out, D)``: ``(M, N, out)``, without multiplying by zeros."""
        (n, d), (m, k) = self.total.shape, self.coordinates.shape
        total, flat = self.total, self.coordinates.flatten()
        columns, place = flat, flat.argsort()
        if m * k > d:  # some directions have one coordinate less
            total, columns, place = F.pad(total, (0, 1)), flat.clamp(max=d - 1), place[:d]
        parts = total.index_select(1, flat).view(n, m, k).transpose(0, 1)
        result: Tensor = _ProductByParts.apply(weight, parts, columns, place)
        return result


class _ProductByParts(torch.autograd.Function):
    """The coordinates of every direction times their columns of the weight.

    Every column is used in one place, so the backward pass reads its gradient from there. That is
    faster than adding up all places, and deterministic on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, parts: Tensor, columns: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(parts, place)
        m, _, k = parts.shape
        return torch.bmm(parts, weight.index_select(1, columns).view(-1, m, k).permute(1, 2, 0))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        parts, place = ctx.saved_tensors
        gathered = torch.bmm(parts.transpose(1, 2), grads[0]).flatten(0, 1)
        return gathered.index_select(0, place).t(), None, None, None


def _attribute(name: str) -> Any:
    """An attribute of a tensor that is read without a call of ``__torch_function__``."""
    descriptor = getattr(Tensor, name)

    def read(v: Directions) -> Any:
        if v.parts is not None:  # else an operation in place may have changed the shape
            return getattr(v.dense, name)
        with torch._C.DisableTorchFunctionSubclass():
            return descriptor.__get__(v)

    return property(read)


class Directions(Tensor):
    """Directions ``(M, N, *event)``, a dense tensor that may know its parts.

    It is used like any tensor, and every operation returns ordinary tensors. An operation that
    changes the numbers, or returns a view through which they could be changed, removes the parts;
    the zeros are then multiplied like other numbers. So does any operation during tracing.

    Attributes:
        dense: the same memory as an ordinary tensor; of use only while the parts are known.
        parts: which direction has which coordinates; None where that is not known.
        read_only: whether the owner of this object promises not to change its numbers, so that
            views do not remove the parts.
    """

    dense: Tensor
    parts: Parts | None = None
    read_only: bool = False

    @classmethod
    def of(cls, dense: Tensor, parts: Parts | None, read_only: bool = False) -> Directions:
        """The memory of a tensor, with its parts."""
        dense = dense.dense if isinstance(dense, Directions) else dense
        v = dense.as_subclass(cls)
        v.dense, v.parts, v.read_only = dense, parts, read_only
        return v

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            for v in _directions_in((*args, *kwargs.values())):
                if not v.read_only and (is_tracing() or _exposes(v, result)):
                    v.parts = None
        return result

    shape = _attribute("shape")
    ndim = _attribute("ndim")
    dtype = _attribute("dtype")
    device = _attribute("device")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy without parts, an ordinary tensor."""
        return memo.setdefault(id(self), self.clone())


def _directions_in(values: Iterable[Any]) -> Iterator[Directions]:
    for value in values:
        if isinstance(value, Directions):
            yield value
        elif isinstance(value, list | tuple):
            yield from _directions_in(value)


def _exposes(v: Tensor, result: Any) -> bool:
    """Whether the numbers of v may have been changed, or can be changed through a result."""
    if isinstance(result, list | tuple):
        return any(_exposes(v, r) for r in result)
    if not isinstance(result, Tensor):  # operations in place may return None
        return not isinstance(result, bool | int | float | str | torch.dtype | torch.device)
    memory = v.untyped_storage().data_ptr()
    return result.layout == torch.strided and result.untyped_storage().data_ptr() == memory


def split(w: Tensor, num: int, generator: torch.Generator | None) -> Directions:
    """Directions ``(M, N, *event)`` among which ``w: (N, *event)`` is split; M is at most D.

    All points are split in the same way. Every direction gets D / M coordinates, rounded up or
    down; which directions get one more is random too, so that all have the same distribution.
    """
    d = dimension(w)
    # Sorting random keys, unlike randperm, can be captured in a CUDA graph.
    coordinates = torch.rand(d, generator=generator, device=w.device).argsort()
    if d % num == 0:
        coordinates = coordinates.view(num, -1)
    else:
        coordinates = F.pad(coordinates, (0, -d % num), value=d).view(-1, num).t()
        order = torch.rand(num, generator=generator, device=w.device).argsort()
        coordinates = coordinates.index_select(0, order)
    parts = Parts(num**0.5 * w.flatten(1), coordinates)
    return Directions.of(parts.dense().reshape(num, *w.shape), parts)


def parts_of(v: Tensor) -> Parts | None:
    """The parts of directions where they are known.

    During tracing they are not: the numbers belong to one call, the recorded operations to all.
    """
    return v.parts if isinstance(v, Directions) and not is_tracing() else None


def plain(v: Tensor) -> Tensor:
    """Directions as an ordinary tensor, for operations that leave them as they are."""
    return v if parts_of(v) is None else cast(Directions, v).dense


def for_reading(v: Tensor) -> Tensor:
    """The same directions, for code that does not change them: views keep the parts.

    Directions made in inference mode are copied, since autograd refuses to save them.
    """
    parts = parts_of(v)
    with torch._C.DisableTorchFunctionSubclass():
        if v.is_inference():
            with torch.inference_mode(False):
                v = v.clone()
                parts = parts and Parts(parts.total.clone(), parts.coordinates.clone())
    return v if parts is None else Directions.of(v, parts, read_only=True)


def of_points(v: Tensor, rows: slice) -> Tensor:
    """The directions of some points, ``(M, N, *event) -> (M, n, *event)``, with their parts."""
    parts = parts_of(v)
    with torch._C.DisableTorchFunctionSubclass():
        mine = v.as_subclass(Tensor)[:, rows].contiguous()
    if parts is None:
        return mine
    return Directions.of(mine, Parts(parts.total[rows], parts.coordinates))


def reshape(v: Tensor, shape: Sequence[int]) -> Tensor:
    """``v.reshape(shape)``, with the parts of v if M and N are still the first two axes."""
    parts, reshaped = parts_of(v), v.reshape(*shape)
    if parts is None or reshaped.shape[:2] != v.shape[:2]:
        return reshaped
    return Directions.of(reshaped, parts, read_only=True)


def linear(v: Tensor, weight: Tensor) -> Tensor:
    """``F.linear(v, weight)``, by parts where they are known and it is faster."""
    parts = parts_of(v)
    if parts is None:
        return F.linear(v, weight)
    if v.ndim == 3 and v.shape.numel() * len(weight) >= MIN_PRODUCTS:
        return parts.through(weight)
    return F.linear(plain(v), weight)

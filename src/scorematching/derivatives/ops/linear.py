"""Linear operations: they act on tangents as on values, and have no second derivative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching import _directions
from scorematching.derivatives.engine.tape import (
    ONES,
    Push,
    Tape,
    constant_like,
    lift,
    without_warnings,
)
from scorematching.derivatives.engine.trace import Call, NoRule, Traced, plain
from scorematching.derivatives.ops.registry import Operation, declare, structural


class Linear(NamedTuple):
    """What the rule of a linear operation reads.

    Attributes:
        batch_axis: 0 for operations that treat each row of a batch by itself, so that tangents
            can be stacked into more rows; None for all others, which are vectorised by vmap.
        along: for operations along an axis, which must not be the batch axis: the position of
            that argument after the first, and its default.
        keeps_axis: whether the batch axis can be found in the result.
        selection: whether the coefficients are zeros and ones.
    """

    batch_axis: int | None = None
    along: tuple[int, int | None] | None = None
    keeps_axis: bool = True
    selection: bool = True

    @property
    def scales(self) -> Any:
        """The coefficients, as tapes take them; None where they are not known."""
        return ONES if self.selection else None


def linear(*names: str, **facts: Any) -> None:
    """Declare operations that are linear in their first argument, with the facts of `Linear`."""
    known = Linear(**facts)
    rule = _any_axes if known.batch_axis is None else _rows
    for name in names:
        declare((name,), Operation(name, "linear", rule, facts=known))


def _rows(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation on the rows of a batch: tangents become more rows."""
    if not isinstance(x, Traced) or any(isinstance(a, Traced) for a in (*args, *kwargs.values())):
        raise NoRule
    y = call.func(x.p, *args, **kwargs)
    push = on_rows(x, y, lambda t: call.func(t, *args, **kwargs))
    axis = 0 if x.axis == 0 and y.shape[:1] == x.p.shape[:1] else None
    return selection(call.tape, x, y, push, axis, call.operation.facts.scales)


def on_rows(x: Traced, y: Tensor, op: Push) -> Push:
    """An operation on the rows of a batch, applied to the rows of all tangents at once."""
    if x.axis != 0 or y.shape[:1] != x.p.shape[:1]:
        return torch.func.vmap(op)
    return lambda t: op(t.flatten(0, 1)).unflatten(0, t.shape[:2])


def _any_axes(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A linear operation on whole tensors: vectorised over tangents."""
    if not isinstance(x, Traced) or any(isinstance(a, Traced) for a in args):
        raise NoRule
    y = call.func(x.p, *args, **kwargs)
    if isinstance(y, (tuple, list)):
        pushes = _pushes(call, x, y, args, kwargs)
        return type(y)(
            selection(call.tape, x, part, push, _axis(call, x, part, args, kwargs))
            for part, push in zip(y, pushes)
        )
    facts: Linear = call.operation.facts
    push = _vmapped(call.func, args, kwargs, None, rare=not facts.keeps_axis)
    return selection(call.tape, x, y, push, _axis(call, x, y, args, kwargs), facts.scales)


def _pushes(call: Call, x: Traced, y: Sequence[Tensor], args: Any, kwargs: Any) -> Iterator[Push]:
    """How tangents of x become those of each of several results."""
    along = call.operation.facts.along
    dim = None if along is None else _dim_argument(call.name, along, args, kwargs)
    start = 0
    for i, part in enumerate(y):
        if dim is None:
            yield _vmapped(call.func, args, kwargs, i)
        elif call.name == "unbind":
            yield partial(torch.select, dim=dim % x.p.ndim + 1, index=i)
        else:  # one piece after the other along an axis
            length = part.shape[dim]
            yield partial(torch.narrow, dim=dim % x.p.ndim + 1, start=start, length=length)
            start += length


def selection(
    tape: Tape, x: Traced, y: Tensor, push: Push, axis: int | None, scales: Any = ONES
) -> Traced:
    """A linear map, mostly of zeros and ones, whose result may share the memory of x."""
    z = tape.linear(x, y, push, axis, scales)
    if y is x.p or y._is_view():
        x.views = (*x.views, ref(z))
        z.viewed = True
    return z


def _vmapped(func: Any, args: Any, kwargs: Any, part: int | None, rare: bool = False) -> Push:
    """A function, or one of its several results, vectorised over tangents.

    For ``rare`` operations vmap may warn of a slow path, and warnings are switched off. That takes
    time, so other operations do without.
    """

    def one(t: Tensor) -> Any:
        result = func(t, *args, **kwargs)
        return result if part is None else result[part]

    def push(t: Tensor) -> Tensor:
        with without_warnings():
            return torch.func.vmap(one)(t)

    return push if rare else torch.func.vmap(one)


def _axis(call: Call, x: Traced, y: Tensor, args: Any, kwargs: Any) -> int | None:
    """The batch axis after an operation that leaves it alone; None where that is not certain."""
    facts: Linear = call.operation.facts
    if x.axis is None or not facts.keeps_axis:
        return None
    if facts.along is not None:
        dim = _dim_argument(call.name, facts.along, args, kwargs)
        if dim is None or x.axis in axes_of(dim, x.p.ndim):
            return None
        dropped = y.ndim < x.p.ndim and axes_of(dim, x.p.ndim)[0] < x.axis
        return x.axis - 1 if dropped else x.axis
    axis = x.axis + y.ndim - x.p.ndim  # expand and repeat add axes on the left
    return axis if 0 <= axis < y.ndim and y.shape[axis] == x.p.shape[x.axis] else None


def _dim_argument(name: str, along: tuple[int, int | None], args: Any, kwargs: Any) -> Any:
    """The axis or axes that an operation acts along."""
    place, default = along
    if "dim" in kwargs or "dims" in kwargs:
        return kwargs.get("dim", kwargs.get("dims"))
    if name == "flip" and len(args) > 1:  # x.flip(0, 1)
        return args
    return args[place] if len(args) > place else default


def axes_of(dim: Any, ndim: int) -> list[int]:
    """The axes that an argument ``dim`` stands for, as non-negative numbers."""
    if dim is None or dim == () or dim == []:
        return list(range(ndim))
    return [d % max(ndim, 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]


def broadcast_axis(y: Tensor, *operands: Traced) -> int | None:
    """The batch axis of a broadcast result: axes count from the right."""
    axes = {None if a.axis is None else a.axis - a.p.ndim + y.ndim for a in operands}
    return axes.pop() if len(axes) == 1 else None


# ---------------------------------------------------------------------- the same numbers


@structural(
    *"reshape view flatten unflatten squeeze unsqueeze ravel contiguous clone view_as reshape_as "
    "to double float half bfloat16 type type_as _to_copy alias _unsafe_view _reshape_alias "
    "lift_fresh lift_fresh_copy resolve_conj resolve_neg cpu cuda atleast_2d atleast_3d".split(),
    kind="linear",
)
def reshape(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The same numbers in the same order, in another shape or precision."""
    if not isinstance(x, Traced):  # const.to(x): only the properties of x matter
        return call.func(x, *plain(args), **plain(kwargs))
    y = call.func(x.p, *plain(args), **plain(kwargs))
    if not isinstance(y, Tensor):
        return y  # x.type() is a name
    if y.numel() != x.p.numel():
        raise NoRule
    if not (y.is_floating_point() or y.is_complex()):
        return y
    axis = 0 if x.axis == 0 and y.ndim and y.shape[0] % call.tape.num_points == 0 else None
    if x.axis is not None and axis is None:
        axis = _axis_after_reshape(x.p.shape, y.shape, x.axis)

    def push(t: Tensor) -> Tensor:
        reshaped = _directions.reshape(t, (t.shape[0], *y.shape))
        return reshaped if t.dtype == y.dtype else reshaped.to(y.dtype)

    return selection(call.tape, x, y, push, axis)


def _axis_after_reshape(before: torch.Size, after: torch.Size, axis: int) -> int | None:
    """Where an axis went: the one of the same length with as many numbers on its left."""
    left = before[:axis].numel()
    for i, length in enumerate(after):
        if length == before[axis] and after[:i].numel() == left:
            return i
    return None


@structural(
    *"permute transpose swapaxes swapdims movedim moveaxis t adjoint T mT H mH numpy_T "
    "transpose_copy permute_copy".split(),
    kind="linear",
)
def permute(call: Call, x: Traced, *args: Any, **kwargs: Any) -> Any:
    """The same numbers, axes in another order."""
    y = call.func(x.p, *args, **kwargs)
    if y.is_complex() and call.name in ("adjoint", "H", "mH"):
        raise NoRule
    keywords = tuple((name, _hashable(value)) for name, value in kwargs.items())
    dims = _order(call.func, x.p.ndim, tuple(map(_hashable, args)), keywords)
    axis = dims.index(x.axis) if x.axis is not None else None
    return selection(call.tape, x, y, lambda t: t.permute(0, *[d + 1 for d in dims]), axis)


def _hashable(argument: Any) -> Any:
    return tuple(argument) if isinstance(argument, list) else argument


@lru_cache(maxsize=1024)
def _order(func: Any, ndim: int, args: Any, keywords: Any) -> tuple[int, ...]:
    """Which axis of a value each axis of the result is.

    Distinct lengths show where every axis goes, with no memory behind them.
    """
    lengths = torch.empty([2 + i for i in range(ndim)], device="meta")
    return tuple(length - 2 for length in func(lengths, *args, **dict(keywords)).shape)


@structural("expand_as", "broadcast_to", "expand", kind="linear")
def expand(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The same numbers repeated along new axes."""
    if not isinstance(x, Traced):
        return call.func(x, *plain(args), **plain(kwargs))
    y = call.func(x.p, *plain(args), **plain(kwargs))
    axis = broadcast_axis(y, x)
    kept = axis is not None and y.shape[axis] == x.p.shape[x.axis]  # type: ignore[index]
    push: Push = lambda t: lift(t, y.ndim).expand(t.shape[0], *y.shape)  # noqa: E731
    return selection(call.tape, x, y, push, axis if kept else None)


@structural("broadcast_tensors")
def broadcast_tensors(call: Call, *tensors: Any) -> Any:
    """Each tensor expanded to the common shape."""
    tensors = (
        tuple(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    )
    shape = torch.broadcast_shapes(*[t.shape for t in tensors])
    return tuple(t.expand(shape) for t in tensors)


@structural("requires_grad_", "pin_memory", "share_memory_", "retain_grad", "data")
def identity(call: Call, x: Traced, *args: Any, **kwargs: Any) -> Any:
    """The value itself; ``data`` alone cuts the graph, as autograd does."""
    return x.p.data if call.name == "data" else x


@structural("repeat_interleave", kind="linear")
def repeat_interleave(
    call: Call, x: Any, repeats: Any, dim: int | None = None, **kwargs: Any
) -> Any:
    """Each entry several times in a row; rows of one point stay together."""
    if not isinstance(x, Traced) or dim is None:
        raise NoRule
    y = call.func(x.p, repeats, dim, **kwargs)
    dim %= x.p.ndim
    uniform = isinstance(repeats, int)
    axis = x.axis if x.axis != dim or (dim == 0 and uniform) else None
    push: Push = lambda t: call.func(t, repeats, dim + 1, **kwargs)  # noqa: E731
    return selection(call.tape, x, y, push, axis)


@structural("masked_fill", kind="linear")
def masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Any:
    """A constant where the mask holds, the value itself elsewhere."""
    if not isinstance(x, Traced) or isinstance(value, Traced):
        return torch.where(mask, value, x)
    return torch.where(mask, constant_like(value, x.p), x)


linear("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
       "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "interpolate",
       "upsample", "upsample_nearest1d", "upsample_nearest2d",
       "upsample_nearest3d", "upsample_bilinear2d", "upsample_linear1d", "upsample_bicubic2d",
       "upsample_trilinear3d", "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa",
       batch_axis=0, selection=False)  # fmt: skip
linear("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "fold", "unfold", "im2col", "col2im",
       batch_axis=0)  # fmt: skip
linear("fliplr", "flipud", "rot90", "repeat", "tile", "tril", "triu", "masked_select", "nan_to_num",
       "unsafe_chunk", "unsafe_split", "real", "as_strided")  # fmt: skip
linear("flip", along=(0, None))
linear("roll", "take_along_dim", along=(1, None))
linear("narrow", "select", "index_select", "gather", "slice", along=(0, None))
linear("split", "chunk", "tensor_split", "split_with_sizes", along=(1, 0))
linear("unbind", along=(0, 0))
linear("cumsum", along=(0, None))
linear("diag_embed", "diagonal", "diag", "trace", "view_as_real", "view_as_complex", "imag", "conj",
       "_conj", "conj_physical", "hsplit", "vsplit", "dsplit", "diff", "diagonal_scatter",
       "linalg_diagonal", "fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_fft2", "fft_ifft2",
       "fft_rfft2", "fft_irfft2", "fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn", "fft_hfft",
       "fft_ihfft", "fft_fftshift", "fft_ifftshift", "_fft_r2c", "_fft_c2r", "_fft_c2c", "stft",
       "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
       "replication_pad2d", "replication_pad3d", "_fft_c2c", "cumulative_trapezoid", "trapezoid",
       "trapz", "narrow_copy", "select_copy", keeps_axis=False, selection=False)  # fmt: skip


@structural("constant_pad_nd", kind="linear")
def constant_pad(call: Call, x: Traced, pad_: Any, value: float = 0.0) -> Any:
    """Padding by a constant."""
    return pad(call, x, pad_, "constant", value)


@structural("pad", kind="linear")
def pad(call: Call, x: Traced, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Padding, by a constant or by entries of x itself."""
    y = F.pad(x.p, pad, mode, value)
    op: Push = lambda t: F.pad(t, pad, mode, 0.0 if mode == "constant" else None)  # noqa: E731
    untouched = 2 * (x.p.ndim - 1) >= len(pad) and x.axis == 0
    return call.tape.linear(x, y, on_rows(x, y, op), 0 if untouched else None, ONES)

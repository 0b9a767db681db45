"""Indexing, joining, choosing and writing into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from scorematching.derivatives.engine.tape import Tape, lift, widen, without_warnings
from scorematching.derivatives.engine.trace import (
    Call,
    NoRule,
    Traced,
    Untraceable,
    plain,
    unfilled,
)
from scorematching.derivatives.ops.linear import broadcast_axis, selection
from scorematching.derivatives.ops.registry import constant, find, structural

constant(
    "gt ge lt le eq ne __eq__ __ne__ __gt__ __ge__ __lt__ __le__ greater greater_equal less "
    "less_equal equal not_equal isnan isinf isposinf isneginf isfinite isclose allclose sign sgn "
    "floor ceil round trunc fix argmax argmin argsort searchsorted bucketize any all count_nonzero "
    "is_floating_point is_complex is_tensor detach signbit heaviside item tolist numpy size dim "
    "numel nelement stride is_contiguous get_device element_size data_ptr is_pinned storage_offset "
    "result_type nonzero nonzero_static argwhere logical_not logical_and logical_or logical_xor "
    "ndimension dim_order __len__ __bool__ __float__ __int__ __index__ __repr__ __format__ __str__ "
    "__contains__ __array__ is_same_size can_cast promote_types bernoulli multinomial "
    "rand_like randn_like randint_like is_nonzero is_inference is_conj is_neg is_set_to isreal "
    "is_signed is_distributed sym_size sym_numel sym_stride floor_divide __floordiv__ "
    "__rfloordiv__ histc histogram unique unique_consecutive bincount nextafter is_leaf "
    "grad_fn grad layout is_cuda is_cpu is_mps is_meta is_sparse is_quantized is_mkldnn is_nested "
    "names itemsize nbytes output_nr _version _base volatile __hash__ "
    "is_xpu is_ipu is_vulkan is_maia is_hpu is_mtia is_sparse_csr retains_grad name "
    "_backward_hooks _is_view has_names storage untyped_storage _is_zerotensor is_coalesced"
)


@structural(
    *"empty_like zeros_like ones_like full_like new_zeros new_ones new_full new_empty new_tensor "
    "empty zeros ones full".split(),
    kind="constant buffer",
)
def fresh_buffer(call: Call, *args: Any, **kwargs: Any) -> Any:
    """A new tensor, which the model may fill with traced values later."""
    return _buffer(call.tape, call.func(*plain(args), **plain(kwargs)))


def _buffer(tape: Tape, y: Any) -> Any:
    """A fresh tensor as a traced one without tangents."""
    if not isinstance(y, Tensor) or not (y.is_floating_point() or y.is_complex()):
        return y
    tape.has_buffers = True
    return unfilled(y, tape)


class TracedFactories(TorchFunctionMode):
    """A region in which plain tensors that a model allocates are traced buffers.

    A model that fills ``torch.zeros(n, d)`` with traced values needs this; it costs time at every
    operation, so it is entered only after such a write was met.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **kwargs or {})
        operation = find(func)
        fresh = operation is not None and operation.kind == "constant buffer"
        if not fresh or isinstance(y, Traced) or torch.is_grad_enabled() != self.tape.recording:
            return y
        return _buffer(self.tape, y)


@structural("__getitem__")
def getitem(call: Call, x: Any, index: Any) -> Any:
    """``x[index]``, where the index does not depend on the points."""
    items = [plain(i) for i in (index if isinstance(index, tuple) else (index,))]
    return _pick(call, x, [torch.as_tensor(i) if hasattr(i, "__len__") else i for i in items])


def _pick(call: Call, x: Any, indices: Sequence[Any]) -> Any:
    """``x[indices]``: by one slice of all tangents, or by vmap where torch moves axes around."""
    if not isinstance(x, Traced):
        raise Untraceable("an index that depends on the points")
    items = tuple(indices)
    y = x.p[items]
    if sum(isinstance(i, Tensor) for i in items) > 1 or any(i is True or i is False for i in items):
        push = torch.func.vmap(itemgetter(items))
        return selection(call.tape, x, y, push, _axis_of_advanced(x, items))
    key = (slice(None), *items)
    return selection(call.tape, x, y, lambda t: t[key], _axis_after_index(x, items))


def _axis_of_advanced(x: Traced, items: tuple[Any, ...]) -> int | None:
    """The batch axis 0 stays where a leading slice keeps it whole and indices are adjacent."""
    places = [i for i, item in enumerate(items) if isinstance(item, Tensor)]
    adjacent = places == list(range(places[0], places[-1] + 1)) if places else False
    whole = isinstance(items[0], slice) and items[0] == slice(None)
    return 0 if x.axis == 0 and whole and adjacent else None


def _axis_after_index(x: Traced, items: tuple[Any, ...]) -> int | None:
    """Where the batch axis is after basic indexing that leaves it whole."""
    consumed = sum(_consumes(i) for i in items)
    if not any(i is Ellipsis for i in items):
        items = (*items, Ellipsis)
    where = next(k for k, i in enumerate(items) if i is Ellipsis)
    items = (*items[:where], *[slice(None)] * (x.p.ndim - consumed), *items[where + 1 :])
    source = target = 0
    for item in items:
        if item is None:
            target += 1
            continue
        if source == x.axis:
            whole = isinstance(item, slice) and item == slice(None)
            return target if whole else None
        source += _consumes(item)
        target += _leaves(item)
    return None


def _consumes(item: Any) -> int:
    """How many axes of the tensor an index applies to."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _leaves(item: Any) -> int:
    """How many axes of the result belong to an index."""
    if isinstance(item, Tensor):
        return 1 if item.dtype == torch.bool else item.ndim
    return int(isinstance(item, slice))


@structural("index", "_unsafe_index")
def index(call: Call, x: Any, indices: Sequence[Any]) -> Any:
    """ATen's ``x[indices]``, with None for whole axes."""
    return _pick(call, x, [slice(None) if i is None else plain(i) for i in indices])


@structural("index_put", "_unsafe_index_put")
def index_put(
    call: Call, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Any:
    """A copy of x with ``x[indices] = values``, with None for whole axes."""
    if accumulate:
        raise NoRule
    return write(call, x, tuple(slice(None) if i is None else i for i in indices), values)


@structural("__setitem__", writes=True)
def write(call: Call, x: Any, index: Any, value: Any) -> Any:
    """A copy of x with ``x[index] = value``, which replaces the value of x (see `dispatch`)."""
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, Traced) for i in items):
        raise NoRule
    items = tuple(plain(i) for i in items)
    y = _written(plain(x), items, plain(value))

    def push(*tangents: Tensor) -> Tensor:
        left = list(tangents)
        num = left[0].shape[0]
        zero = y.new_zeros(())
        base = widen(left.pop(0), x.p) if isinstance(x, Traced) else zero.expand(num, *y.shape)
        new: Any = zero
        if isinstance(value, Traced):
            # Broadcasting of the value counts from the right, behind the axis of tangents.
            target = y[items].ndim
            new = lift(widen(left.pop(0), value.p), target)
        return _written(base, (slice(None), *items), new)

    inputs = [v for v in (x, value) if isinstance(v, Traced)]
    axes = {v.axis for v in inputs} if y[items].ndim == y.ndim else {None}
    whole = not items or (isinstance(items[0], slice) and items[0] == slice(None))
    axis = 0 if axes == {0} and (whole or items[0] is Ellipsis) else None
    return call.tape.emit(inputs, y, push, None, axis)


def _written(base: Tensor, items: tuple[Any, ...], value: Any) -> Tensor:
    """A copy of the base with ``base[items] = value``."""
    y = base.clone()
    y[items] = value
    return y


@structural("copy")
@structural("copy_", writes=True)
def copy(call: Call, x: Any, source: Any, non_blocking: bool = False) -> Any:
    """``x.copy_(source)``: the source in the shape of x."""
    if not isinstance(source, Traced):
        raise Untraceable("a traced value overwritten by a constant")
    return source.to(x.dtype).expand(x.shape) * 1


@structural("cat", "concat", "concatenate")
def cat(call: Call, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors joined along an axis; some may be constant, empty ones are skipped."""
    tensors = [t for t in tensors if not (t.ndim == 1 and t.numel() == 0)]
    y = torch.cat([plain(x) for x in tensors], dim)
    dim %= y.ndim
    axes = {x.axis for x in tensors if isinstance(x, Traced)}
    axis = axes.pop() if len(axes) == 1 else None
    return call.tape.join(tensors, y, dim, None if axis == dim else axis)


@structural("stack")
def stack(call: Call, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors joined along a new axis."""
    dim %= plain(tensors[0]).ndim + 1
    return torch.cat([torch.unsqueeze(x, dim) for x in tensors], dim)


@structural("hstack")
def hstack(call: Call, tensors: Sequence[Any]) -> Any:
    """Tensors joined along the second axis, or the first where there is one."""
    return torch.cat(list(tensors), 0 if tensors[0].ndim == 1 else 1)


@structural("where", kink=-1)
def where(call: Call, condition: Any, *branches: Any) -> Any:
    """One of two values, by a condition that is taken as constant."""
    if call.func is Tensor.where:  # x.where(condition, other)
        condition, branches = branches[0], (condition, branches[1])
    if len(branches) != 2:
        return call.func(plain(condition), *plain(branches))
    mask, (a, b) = plain(condition), branches
    traced = a if isinstance(a, Traced) else b
    if not isinstance(traced, Traced):
        return call.func(mask, *plain(branches))
    zero = torch.zeros((), dtype=traced.dtype, device=mask.device)
    return _chosen(call, mask, a, zero, True) + _chosen(call, mask, b, zero, False)


def _chosen(call: Call, mask: Tensor, x: Any, zero: Tensor, keep: bool) -> Any:
    """``x`` where the mask holds (or does not), zero elsewhere; never ``0 * inf``."""

    def choose(value: Any) -> Tensor:
        return torch.where(mask, value, zero) if keep else torch.where(mask, zero, value)

    y = choose(plain(x))
    if not isinstance(x, Traced):
        return y
    return selection(call.tape, x, y, lambda t: choose(lift(t, y.ndim)), broadcast_axis(y, x))


@structural("maximum", "fmax", "minimum", "fmin", kink=0)
def maximum(call: Call, a: Any, b: Any) -> Any:
    """The larger of two values, or the smaller."""
    first = torch.ge if "max" in call.name else torch.le
    return torch.where(first(plain(a), plain(b)), a, b)


@structural(*"max min median cummax cummin mode kthvalue nanmedian sort topk".split(), kink=0)
def extreme(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Entries chosen by their order, of two tensors or along an axis, with their own tangents."""
    if call.name in ("max", "min") and args and isinstance(args[0], Tensor):
        return maximum(call, x, args[0])
    if call.name in ("max", "min") and not args and not kwargs:  # over all axes
        best = torch.argmax if call.name == "max" else torch.argmin
        return x.reshape(-1)[best(x.p)]
    result = call.func(x.p, *args, **kwargs)
    if isinstance(result, Tensor):
        raise NoRule
    place, indices = int(call.name in ("kthvalue", "topk")), result[1]  # these have k before dim
    dim: int = kwargs.get("dim", args[place] if len(args) > place else -1)
    kept = indices.ndim == x.p.ndim
    picked = torch.gather(x, dim, indices if kept else indices.unsqueeze(dim))
    return type(result)((picked if kept else torch.squeeze(picked, dim), indices))


@structural("amax", "amin", kink=0)
def amax(call: Call, x: Traced, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest entry along one axis; ties go to the first, where torch shares the gradient."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    if len(dims) != 1:
        raise NoRule
    best = torch.max if call.name == "amax" else torch.min
    return best(x, dims[0], keepdim=keepdim).values


@structural(
    "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d", kink=0,
)  # fmt: skip
def max_pool(call: Call, x: Traced, *args: Any, **kwargs: Any) -> Any:
    """The largest entry of each window, with its tangent."""
    if not isinstance(call.func, torch._ops.OpOverload):
        raise NoRule
    values, indices = call.func(x.p, *args, **kwargs)
    axes = 3 if "3d" in call.name else 2
    picked = torch.gather(x.flatten(-axes), -1, indices.flatten(-axes))
    return picked.reshape(values.shape), indices


def _jointly_linear(places: tuple[int, ...]) -> Any:
    """The rule of an operation that is linear in several arguments together."""

    def rule(call: Call, *args: Any, **kwargs: Any) -> Any:
        others = (a for i, a in enumerate(args) if i not in places)
        if len(args) <= places[-1] or any(isinstance(a, Traced) for a in others):
            raise NoRule
        active = [i for i in places if isinstance(args[i], Traced)]
        func = getattr(Tensor, call.name) if call.operation.writes else call.func
        y = func(*plain(args), **kwargs)

        def with_tangents(*tangents: Tensor) -> Tensor:
            left = iter(tangents)
            filled = [
                a if i not in places
                else next(left) if i in active
                else torch.zeros_like(a) if isinstance(a, Tensor) else 0.0
                for i, a in enumerate(args)
            ]  # fmt: skip
            return func(*filled, **kwargs)

        inputs = [args[i] for i in active]

        def push(*tangents: Tensor) -> Tensor:
            wide = [widen(t, x.p) for t, x in zip(tangents, inputs)]
            with without_warnings():
                return torch.func.vmap(with_tangents)(*wide)

        return call.tape.emit(inputs, y, push, None, _axis_beside(args, inputs, y))

    return rule


def _axis_beside(args: tuple[Any, ...], inputs: list[Any], y: Tensor) -> int | None:
    """Batch axis 0, where the operation works along another axis."""
    along = args[1] if len(args) > 1 and isinstance(args[1], int) else None
    rows = all(x.axis == 0 and x.p.ndim == y.ndim for x in inputs)
    return 0 if rows and along is not None and along % y.ndim != 0 else None


for _name in ("scatter", "scatter_add", "index_add", "index_copy", "index_fill"):
    structural(_name)(_jointly_linear((0, 3)))
structural("masked_scatter")(_jointly_linear((0, 2)))
structural("diagonal_scatter")(_jointly_linear((0, 1)))


@structural("select_scatter")
def select_scatter(call: Call, x: Any, src: Any, dim: int, index: int) -> Any:
    """A copy of x with one slice replaced."""
    return write(call, x, (*[slice(None)] * (dim % x.ndim), index), src)


@structural("slice_scatter")
def slice_scatter(
    call: Call, x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """A copy of x with a range along one axis replaced."""
    return write(call, x, (*[slice(None)] * (dim % x.ndim), slice(start, end, step)), src)

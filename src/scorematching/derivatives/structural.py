"""Rules of operations with a shape of their own: sums, products, indexing, softmax and the like.

Each is a function ``rule(tape, func, *args, **kwargs)`` that works out the value of the operation,
how it acts on tangents and where it leaves the batch axis, and hands the three to the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching import _directions
from scorematching.derivatives import composed, rules
from scorematching.derivatives.tracing import (
    RULES,
    Push,
    Tape,
    Traced,
    Trailing,
    Untraceable,
    lift,
    name_of,
    plain,
)


def _elementwise(tape: Tape, func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, Traced) or any(isinstance(a, Traced) for a in args):
        return tape.generic(func, (x, *args), kwargs)
    name = name_of(func)
    if not tape.differentiates:
        return tape.elementwise(x, func(x.p, *args, **kwargs), None, None)
    linked = name in rules.FROM_INPUT and tape.recording
    y = func(x.p.detach() if linked else x.p, *args, **kwargs)
    if y.shape != x.p.shape:  # an exponent or a bound that broadcasts
        return tape.generic(func, (x, *args), kwargs)
    d1, d2 = rules.ELEMENTWISE[name](x.p, y, *args, **kwargs)
    y = _Link.apply(x.p, d1, y) if linked else y
    shortcut = rules.ONE_TANGENT.get(name)
    if shortcut is not None and (args or kwargs):
        shortcut = partial(_with_arguments, shortcut, args, kwargs)
    return tape.elementwise(x, y, d1, d2, shortcut)


def _with_arguments(shortcut: Push, args: Any, kwargs: Any, *values: Tensor) -> Tensor:
    return shortcut(*values, *args, **kwargs)


class _Link(torch.autograd.Function):
    """``y = f(z)`` whose backward pass multiplies by the ``f'(z)`` that the tangents use too.

    The derivative is then computed, and differentiated again, once instead of twice.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, d1: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(d1)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (d1,) = ctx.saved_tensors
        return grads[0] * d1, None, None


def _pow(tape: Tape, func: Any, x: Any, exponent: Any) -> Any:
    if isinstance(exponent, Traced):
        base: Any = x if isinstance(x, (Traced, Tensor)) else torch.as_tensor(x).to(exponent.p)
        power: Any = exponent
        return torch.exp(power * torch.log(base))
    return _elementwise(tape, func, x, exponent)


def _reshape(tape: Tape, func: Any, x: Traced, *args: Any, **kwargs: Any) -> Any:
    y = func(x.p, *plain(args), **kwargs)
    if y.numel() != x.p.numel() or y.dtype != x.p.dtype:
        raise Untraceable(f"{name_of(func)}: changes size or dtype")
    axis = 0 if x.axis == 0 and y.ndim and y.shape[0] % tape.num_points == 0 else None
    if x.axis is not None and axis is None:
        axis = _axis_after_reshape(x.p.shape, y.shape, x.axis)
    push = lambda t: _directions.reshape(t, (t.shape[0], *y.shape))  # noqa: E731
    return _selection(tape, x, y, push, axis)


def _axis_after_reshape(before: torch.Size, after: torch.Size, axis: int) -> int | None:
    """Where an axis went: the one of the same length with as many numbers on its left."""
    left = before[:axis].numel()
    for i, length in enumerate(after):
        if length == before[axis] and after[:i].numel() == left:
            return i
    return None


def _permute(tape: Tape, func: Any, x: Traced, *args: Any, **kwargs: Any) -> Any:
    y = func(x.p, *args, **kwargs)
    # Distinct lengths show where every axis goes, with no memory behind them.
    order = func(torch.empty([2 + i for i in range(x.p.ndim)], device="meta"), *args, **kwargs)
    dims = [length - 2 for length in order.shape]
    axis = dims.index(x.axis) if x.axis is not None else None
    return _selection(tape, x, y, lambda t: t.permute(0, *[d + 1 for d in dims]), axis)


def _reduce(
    tape: Tape, func: Any, x: Traced, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Any:
    if kwargs.pop("axis", None) is not None or any(v is not None for v in kwargs.values()):
        raise Untraceable(f"{name_of(func)}: unusual arguments")
    ndim = x.p.ndim
    dims = axes_of(dim, ndim)
    axis = None if x.axis is None or x.axis in dims else x.axis
    if axis is not None and not keepdim:
        axis -= sum(d < axis for d in dims)
    name = name_of(func)
    reduce = torch.sum if name == "sum" else torch.mean
    y = reduce(x.p, dims, keepdim=keepdim)
    weight = 1.0 if name == "sum" else y.numel() / x.p.numel()

    def push(t: Tensor) -> Tensor:
        return reduce(t, [d - ndim for d in dims], keepdim=keepdim)

    return tape.linear(x, y, push, axis, lambda t: weight * push(t))


def axes_of(dim: Any, ndim: int) -> list[int]:
    """The axes that an argument ``dim`` means, as non-negative numbers."""
    if dim is None or dim == ():
        return list(range(ndim))
    return [d % ndim for d in (dim if isinstance(dim, (list, tuple)) else [dim])]


def _batched(tape: Tape, func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, Traced) or any(isinstance(a, Traced) for a in (*args, *kwargs.values())):
        return tape.generic(func, (x, *args), kwargs)
    name = name_of(func)
    y = func(x.p, *args, **kwargs)
    if name == "pad" and _pads_with_number(*args, **kwargs):
        args, kwargs = (args[0] if args else kwargs["pad"],), {}
    push = _on_rows(x, y, lambda t: func(t, *args, **kwargs))
    return tape.linear(x, y, push, 0, push if name in rules.SELECTIONS else None)


def _convolution(
    tape: Tape, func: Any, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
) -> Any:
    if isinstance(weight, Traced) or isinstance(bias, Traced):
        return tape.generic(func, (x, weight, bias, *args), kwargs)
    y = func(x.p, weight, bias, *args, **kwargs)

    def convolve(w: Tensor) -> Push:
        return _on_rows(x, y, lambda t: func(t, w, None, *args, **kwargs))

    return tape.linear(x, y, convolve(weight), 0, lambda t: convolve(weight.square())(t))


def _on_rows(x: Traced, y: Tensor, op: Push) -> Push:
    """An operation on the rows of a batch, applied to the rows of all tangents at once."""
    if x.axis != 0 or y.shape[:1] != x.p.shape[:1]:
        raise Untraceable("an operation on images without a batch axis in front")
    return lambda t: op(t.flatten(0, 1)).unflatten(0, t.shape[:2])


def _pads_with_number(pad: Any, mode: str = "constant", value: float | None = None) -> bool:
    return mode == "constant" and bool(value)


def _linear(tape: Tape, func: Any, x: Traced, *args: Any, **kwargs: Any) -> Any:
    if name_of(func) in rules.SHAPE_OF:
        args = plain(args)
    if not isinstance(x, Traced) or any(isinstance(a, Traced) for a in args):
        return tape.generic(func, (x, *args), kwargs)
    name = name_of(func)
    y = func(x.p, *args, **kwargs)
    if name == "masked_fill":
        args = (args[0], 0.0)
    if isinstance(y, (tuple, list)):
        stacked = [_vmapped(func, args, kwargs, i) for i in range(len(y))]
        return type(y)(
            _selection(tape, x, part, push, _axis_kept(name, x, part, args, kwargs))
            for part, push in zip(y, stacked)
        )
    push = _vmapped(func, args, kwargs, None)
    return _selection(tape, x, y, push, _axis_kept(name, x, y, args, kwargs))


def _selection(tape: Tape, x: Traced, y: Tensor, push: Push, axis: int | None) -> Traced:
    """A linear map whose coefficients are zeros and ones, their own squares."""
    z = tape.linear(x, y, push, axis, push)
    x.viewed = z.viewed = True
    return z


def _vmapped(func: Any, args: Any, kwargs: Any, part: int | None) -> Push:
    def one(t: Tensor) -> Tensor:
        result = func(t, *args, **kwargs)
        return result if part is None else result[part]

    return torch.func.vmap(one)


def _axis_kept(name: str, x: Traced, y: Tensor, args: Any, kwargs: Any) -> int | None:
    """The batch axis after an operation that leaves it alone; None where that is not sure."""
    if x.axis is None:
        return None
    if name in rules.ALONG:
        dim = _dim_argument(name, args, kwargs)
        if dim is None or x.axis in axes_of(dim, x.p.ndim):
            return None
        dropped = y.ndim < x.p.ndim and axes_of(dim, x.p.ndim)[0] < x.axis
        return x.axis - 1 if dropped else x.axis
    if name in rules.UNSURE:
        return None
    axis = x.axis + y.ndim - x.p.ndim  # expand and repeat add axes on the left
    return axis if 0 <= axis < y.ndim and y.shape[axis] == x.p.shape[x.axis] else None


def _dim_argument(name: str, args: Any, kwargs: Any) -> Any:
    """The axis or axes that an operation of `rules.ALONG` acts along."""
    place, default = rules.ALONG[name]
    if "dim" in kwargs or "dims" in kwargs:
        return kwargs.get("dim", kwargs.get("dims"))
    if name == "flip" and len(args) > 1:  # x.flip(0, 1)
        return args
    return args[place] if len(args) > place else default


def _getitem(tape: Tape, func: Any, x: Any, index: Any) -> Any:
    if not isinstance(x, Traced):
        raise Untraceable("an index that depends on the points")
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, Traced) for i in items):
        raise Untraceable("an index that depends on the points")
    items = tuple(
        i if isinstance(i, Tensor) or not hasattr(i, "__len__") else torch.as_tensor(i)
        for i in items
    )
    advanced = [i for i in items if isinstance(i, Tensor)]
    y = x.p[items]
    if len(advanced) > 1:
        return _selection(tape, x, y, _vmapped(torch.Tensor.__getitem__, (items,), {}, None), None)
    key = (slice(None), *items)
    return _selection(tape, x, y, lambda t: t[key], _axis_after_index(x, items))


def _axis_after_index(x: Traced, items: tuple[Any, ...]) -> int | None:
    """Where the batch axis is after basic indexing that leaves it whole."""
    consumed = sum(i is not None and i is not Ellipsis for i in items)
    if Ellipsis not in [i for i in items if not isinstance(i, Tensor)]:
        items = (*items, Ellipsis)
    where = next(k for k, i in enumerate(items) if i is Ellipsis)
    items = (*items[:where], *[slice(None)] * (x.p.ndim - consumed), *items[where + 1 :])
    source = target = 0
    for item in items:
        if item is None:
            target += 1
            continue
        if source == x.axis:
            return target if item == slice(None) else None
        source += 1
        target += item.ndim if isinstance(item, Tensor) else int(isinstance(item, slice))
    return None


def _broadcast_axis(y: Tensor, *operands: Traced) -> int | None:
    """The batch axis of a broadcast result: axes count from the right."""
    axes = {None if a.axis is None else a.axis - a.p.ndim + y.ndim for a in operands}
    return axes.pop() if len(axes) == 1 else None


def _add(tape: Tape, func: Any, a: Any, b: Any, *, alpha: float = 1, sign: float = 1.0) -> Any:
    y = torch.add(plain(a), plain(b), alpha=alpha) if sign > 0 else plain(a) - alpha * plain(b)
    if isinstance(a, Traced) and isinstance(b, Traced):
        return tape.add(a, b, y, sign * alpha, _broadcast_axis(y, a, b))
    x, scale = (a, 1.0) if isinstance(a, Traced) else (b, sign * alpha)
    push: Push = (lambda t: lift(t, y.ndim)) if scale == 1 else lambda t: lift(scale * t, y.ndim)
    square: Push = lambda t: lift(scale * scale * t, y.ndim)  # noqa: E731
    return tape.linear(x, y, push, _broadcast_axis(y, x), square, shared=True)


def _sub(tape: Tape, func: Any, a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _add(tape, func, a, b, alpha=alpha, sign=-1.0)


def _mul(tape: Tape, func: Any, a: Any, b: Any) -> Any:
    y = plain(a) * plain(b)
    if isinstance(a, Traced) and isinstance(b, Traced):
        if a is b:
            return tape.elementwise(a, y, 2 * a.p, torch.full_like(a.p, 2.0))
        return tape.product(a, b, y, torch.mul, _broadcast_axis(y, a, b))
    x, c = (a, b) if isinstance(a, Traced) else (b, a)
    push, square = (lambda t: lift(t, y.ndim) * c), (lambda t: lift(t, y.ndim) * (c * c))
    return tape.linear(x, y, push, _broadcast_axis(y, x), square, shared=True)


def _div(tape: Tape, func: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        return func(plain(a), plain(b), rounding_mode=rounding_mode)
    if isinstance(b, Traced):
        divisor: Any = b
        return a * torch.reciprocal(divisor)
    y = a.p / b
    push, square = (lambda t: lift(t, y.ndim) / b), (lambda t: lift(t, y.ndim) / (b * b))
    return tape.linear(a, y, push, _broadcast_axis(y, a), square, shared=True)


def _matmul(tape: Tape, func: Any, a: Any, b: Any) -> Any:
    pa, pb = plain(a), plain(b)
    y = pa @ pb
    if isinstance(a, Traced) and isinstance(b, Traced):
        axis = _broadcast_axis(y, a, b)
        batch = axis is not None and axis < y.ndim - 2
        return tape.product(a, b, y, torch.matmul, axis if batch else None)
    if isinstance(a, Traced):
        axis = a.axis if pb.ndim == 1 else _broadcast_axis(y, a)
        axis = None if a.axis == pa.ndim - 1 else axis
        ndim = y.ndim + 1 if pb.ndim == 1 else y.ndim
        push, square = (
            (lambda t: lift(_wide(t, pa, -1), ndim) @ pb),
            (lambda t: lift(_wide(t, pa, -1), ndim) @ pb.square()),
        )
        return tape.linear(a, y, push, axis, square, shared=True)
    if pb.ndim < 2:
        raise Untraceable("a matrix times a traced vector")
    axis = None if b.axis == pb.ndim - 2 else _broadcast_axis(y, b)
    ndim = max(y.ndim, pb.ndim)
    push, square = (
        (lambda t: pa @ lift(_wide(t, pb, -2), ndim)),
        (lambda t: pa.square() @ lift(_wide(t, pb, -2), ndim)),
    )
    return tape.linear(b, y, push, axis, square, shared=True)


def _wide(t: Tensor, p: Tensor, axis: int) -> Tensor:
    """Tangents at full size along the axis that a matrix product sums over."""
    shape = list(t.shape)
    shape[axis] = p.shape[axis]
    return t.expand(shape)


def _linear_layer(tape: Tape, func: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    if isinstance(weight, Traced) or isinstance(bias, Traced):
        y = torch.matmul(x, weight.mT)
        return y if bias is None else y + bias
    y = tape.affine(x, weight, bias)
    axis = None if x.axis == x.p.ndim - 1 else x.axis

    def push(t: Tensor, w: Tensor = weight) -> Tensor:
        wide = t if t.shape[-1] == w.shape[1] else t.expand(*t.shape[:-1], w.shape[1])
        return _directions.linear(wide, w)

    square = lambda t: push(t, weight.square())  # noqa: E731
    return tape.linear(x, y, Trailing(push), axis, square, shared=True)


def _einsum(tape: Tape, func: Any, equation: str, *operands: Any) -> Any:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    active = [i for i, o in enumerate(operands) if isinstance(o, Traced)]
    if not arrow or "." in equation or len(active) > 2:
        raise Untraceable(f"einsum: {equation}")
    extra = next(c for c in "ZYXWVUTSRQPONM" if c not in equation)
    values = [plain(o) for o in operands]
    y = torch.einsum(equation, *values)

    def push(*tangents: Tensor, power: int = 1) -> Tensor:
        words = list(terms)
        factors = [v if i in active or power == 1 else v**power for i, v in enumerate(values)]
        for i, t in zip(active, tangents):
            stacked = t.ndim > values[i].ndim
            words[i] = extra + terms[i] if stacked else terms[i]
            factors[i] = t.reshape(t.shape[0], *values[i].shape) if stacked else t
        stacked_output = extra + output if extra in "".join(words) else output
        return torch.einsum(f"{','.join(words)}->{stacked_output}", *factors)

    traced = [operands[i] for i in active]
    axes = {
        None if o.axis is None else output.find(terms[i][o.axis]) for i, o in zip(active, traced)
    }
    axis = axes.pop() if len(axes) == 1 and -1 not in axes else None
    if len(active) == 1:
        return tape.linear(traced[0], y, push, axis, lambda t: push(t, power=2))
    return tape.product(traced[0], traced[1], y, push, axis)


def _cat(tape: Tape, func: Any, tensors: Sequence[Any], dim: int = 0, **kwargs: Any) -> Any:
    if kwargs:
        raise Untraceable("cat: unusual arguments")
    y = torch.cat([plain(x) for x in tensors], dim)
    dim %= y.ndim
    axes = {x.axis for x in tensors if isinstance(x, Traced)}
    axis = axes.pop() if len(axes) == 1 else None
    return tape.join(tensors, y, dim, None if axis == dim else axis)


def _stack(tape: Tape, func: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    dim %= plain(tensors[0]).ndim + 1
    return torch.cat([torch.unsqueeze(x, dim) for x in tensors], dim)


def _where(tape: Tape, func: Any, condition: Any, a: Any, b: Any) -> Any:
    mask = plain(condition)
    zero = torch.zeros((), dtype=(a if isinstance(a, Traced) else b).dtype, device=mask.device)
    parts = [_chosen(tape, mask, a, zero, True), _chosen(tape, mask, b, zero, False)]
    return parts[0] + parts[1]


def _chosen(tape: Tape, mask: Tensor, x: Any, zero: Tensor, keep: bool) -> Any:
    """``x`` where the mask says so, zero elsewhere; never ``0 * inf``."""

    def choose(value: Tensor) -> Tensor:
        return torch.where(mask, value, zero) if keep else torch.where(mask, zero, value)

    y = choose(plain(x))
    if not isinstance(x, Traced):
        return y
    return _selection(tape, x, y, lambda t: choose(lift(t, y.ndim)), _broadcast_axis(y, x))


def _swap(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of ``a - b`` made that of ``b.__rsub__(a)``."""
    return lambda tape, func, b, a: rule(tape, func, a, b)


def _identity(tape: Tape, func: Any, x: Traced, *args: Any, **kwargs: Any) -> Any:
    return x


def _composed(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Any:
    return composed.BY_NAME[name_of(func)](*args, **kwargs)


def _generic(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Any:
    return tape.generic(func, args, kwargs)


RULES.update({
    "add": _add, "sub": _sub, "rsub": _swap(_sub), "mul": _mul, "div": _div, "rdiv": _swap(_div),
    "pow": _pow, "rpow": _swap(_pow), "matmul": _matmul, "rmatmul": _swap(_matmul),
    "linear": _linear_layer, "einsum": _einsum, "sum": _reduce, "mean": _reduce, "cat": _cat,
    "stack": _stack, "where": _where, "__getitem__": _getitem, "requires_grad_": _identity,
    **dict.fromkeys(
        [f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)], _convolution
    ),
    # kinds of operation that `rules` lists by name
    "elementwise": _elementwise, "reshape": _reshape, "permute": _permute, "batched": _batched,
    "linear map": _linear, "composed": _composed, "generic": _generic,
})  # fmt: skip

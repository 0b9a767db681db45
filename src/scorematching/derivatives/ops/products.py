"""Arithmetic: sums, products, matrix products, convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scorematching import _directions
from scorematching.derivatives.engine.tape import ONES, Push, Trailing, constant_like, lift
from scorematching.derivatives.engine.trace import Call, NoRule, Traced, plain
from scorematching.derivatives.ops import elementwise
from scorematching.derivatives.ops.linear import broadcast_axis, on_rows
from scorematching.derivatives.ops.registry import structural


@structural("add", "__add__", "__radd__", "__iadd__")
def add(call: Call, input: Any, other: Any, *, alpha: float = 1, sign: float = 1.0) -> Any:
    """``input + alpha * other``."""
    a, b = input, other
    y = torch.add(plain(a), plain(b), alpha=alpha) if sign > 0 else plain(a) - alpha * plain(b)
    if isinstance(a, Traced) and isinstance(b, Traced):
        return call.tape.add(a, b, y, sign * alpha, broadcast_axis(y, a, b))
    x, scale = (a, 1.0) if isinstance(a, Traced) else (b, sign * alpha)
    if scale == 1:
        return call.tape.linear(x, y, lambda t: lift(t, y.ndim), broadcast_axis(y, x), ONES, True)
    push: Push = lambda t, c=scale: lift(c * t, y.ndim)  # noqa: E731
    return call.tape.linear(x, y, push, broadcast_axis(y, x), scale, shared=True)


@structural("sub", "subtract", "__sub__", "__isub__")
def sub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Any:
    """``input - alpha * other``."""
    return add(call, input, other, alpha=alpha, sign=-1.0)


@structural("mul", "multiply", "__mul__", "__rmul__", "__imul__")
def mul(call: Call, input: Any, other: Any) -> Any:
    """A product, one factor of which may be constant."""
    a, b = input, other
    y = plain(a) * plain(b)
    if isinstance(a, Traced) and isinstance(b, Traced):
        if a is b:
            return call.tape.elementwise(a, y, 2 * a.p, torch.full_like(a.p, 2.0))
        return call.tape.product(a, b, y, torch.mul, broadcast_axis(y, a, b))
    x, c = (a, b) if isinstance(a, Traced) else (b, a)
    push: Push = lambda t, c=c: lift(t, y.ndim) * c  # noqa: E731
    return call.tape.linear(x, y, push, broadcast_axis(y, x), c, shared=True)


@structural("div", "divide", "true_divide", "__truediv__", "__div__", "__itruediv__")
def div(call: Call, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """A quotient; rounded ones are piecewise constant."""
    a, b = input, other
    if rounding_mode is not None:
        return torch.div(plain(a), plain(b), rounding_mode=rounding_mode)
    if isinstance(b, Traced):
        return torch.mul(torch.reciprocal(b), a)
    y = a.p / b
    push: Push = lambda t, b=b: lift(t, y.ndim) / b  # noqa: E731
    return call.tape.linear(a, y, push, broadcast_axis(y, a), b, shared=True)


@structural("pow", "float_power", "__pow__", "__ipow__")
def power(call: Call, input: Any, exponent: Any) -> Any:
    """A power, of which base or exponent may be constant."""
    if isinstance(exponent, Traced):
        base: Any = input if isinstance(input, Tensor) else constant_like(input, exponent.p)
        return torch.exp(exponent * torch.log(base))
    operation = replace(elementwise.POWER, writes=call.operation.writes)
    call = call._replace(operation=operation)
    if not isinstance(exponent, Tensor) or exponent.requires_grad:
        return elementwise.apply(call, input, exponent)
    zero = exponent == 0  # torch's own derivatives of z ** 0 are NaN at a z of zero
    result = elementwise.apply(call, input, torch.where(zero, 1, exponent))
    return torch.where(zero, torch.ones_like(plain(result)), result)


def _swap(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of ``a - b`` made that of ``b.__rsub__(a)``."""
    return lambda call, b, a, **kwargs: rule(call, a, b, **kwargs)


structural("__rsub__", "rsub")(_swap(sub))
structural("__rtruediv__", "__rdiv__")(_swap(div))
structural("__rpow__")(_swap(power))


@structural("matmul", "mm", "bmm", "mv", "linalg_matmul", "__matmul__")
def matmul(call: Call, input: Any, other: Any) -> Any:
    """A matrix product, one factor of which may be constant."""
    a, b = input, other
    pa, pb = plain(a), plain(b)
    y = torch.matmul(pa, pb)
    if isinstance(a, Traced) and isinstance(b, Traced):
        if pa.ndim < 2 or pb.ndim < 2:
            raise NoRule
        axis = broadcast_axis(y, a, b)
        batch = axis is not None and axis < y.ndim - 2
        return call.tape.product(a, b, y, torch.matmul, axis if batch else None)
    if isinstance(a, Traced):
        return _with_constant(call, a, pb, y)
    return _with_constant(call, b, pa, y, on_left=True)


def _with_constant(call: Call, x: Traced, c: Tensor, y: Tensor, on_left: bool = False) -> Any:
    """``y = x @ c``, or ``c @ x``, for a constant c; the sum must not run over the points."""
    summed = -2 if on_left else -1  # the axis of x that the sum runs over
    if x.p.ndim < -summed:
        raise NoRule
    axis = broadcast_axis(y, x)
    if c.ndim == 1:
        axis = None if on_left else x.axis
    ndim = max(y.ndim + (c.ndim == 1), x.p.ndim)

    def push(t: Tensor, c: Tensor = c) -> Tensor:
        shape = [*t.shape]
        shape[summed] = x.p.shape[summed]  # in full along the axis that is summed
        wide = lift(t.expand(shape), ndim)
        return c @ wide if on_left else wide @ c

    mixed = x.p.ndim == 1 or x.axis == x.p.ndim + summed
    return call.tape.linear(x, y, push, None if mixed else axis, c, shared=True)


structural("__rmatmul__")(_swap(matmul))


@structural("addmm", "addmv", "baddbmm")
def addmm(
    call: Call, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    """``beta * input + alpha * mat1 @ mat2``."""
    if beta == 1 and alpha == 1 and call.name == "addmm" and _is_layer(input, mat1, mat2):
        return linear_layer(call, mat1, mat2.t(), input)
    product = torch.matmul(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    return product + (input if beta == 1 else input * beta)


def _is_layer(bias: Any, x: Any, weight: Any) -> bool:
    """Whether ``bias + x @ weight`` is a linear layer with constant weights."""
    traced = isinstance(weight, Traced) or isinstance(bias, Traced)
    return isinstance(x, Traced) and not traced and weight.ndim == 2 and bias.ndim == 1


@structural("linear")
def linear_layer(call: Call, input: Any, weight: Any, bias: Any = None) -> Any:
    """A linear layer; tangents with known zeros multiply their own columns of the weight alone."""
    x = input
    if not isinstance(x, Traced) or isinstance(weight, Traced) or isinstance(bias, Traced):
        y = torch.matmul(x, weight.mT if weight.ndim > 1 else weight)
        return y if bias is None else y + bias
    y = call.tape.affine(x, weight, bias)
    if weight.ndim == 1:
        raise NoRule
    axis = None if x.axis == x.p.ndim - 1 else x.axis

    def push(t: Tensor, w: Tensor = weight) -> Tensor:
        wide = t if t.shape[-1] == w.shape[1] else t.expand(*t.shape[:-1], w.shape[1])
        return _directions.linear(wide, w)

    return call.tape.linear(x, y, Trailing(push), axis, weight, shared=True)


@structural(*[f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)], "convolution")
def convolution(
    call: Call, input: Any, weight: Any, bias: Any = None, *args: Any, **kw: Any
) -> Any:
    """A convolution with constant weights."""
    x = input
    if not isinstance(x, Traced) or isinstance(weight, Traced) or isinstance(bias, Traced):
        raise NoRule
    y = call.func(x.p, weight, bias, *args, **kw)
    if y.ndim != x.p.ndim or x.axis != 0:
        raise NoRule

    def push(t: Tensor, w: Tensor = weight) -> Tensor:
        return on_rows(x, y, lambda rows: call.func(rows, w, None, *args, **kw))(t)

    return call.tape.linear(x, y, push, 0, weight)


@structural("einsum")
def einsum(call: Call, equation: str, *operands: Any) -> Any:
    """A sum of products in explicit notation, linear in one traced operand or bilinear in two."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    active = [i for i, o in enumerate(operands) if isinstance(o, Traced)]
    if not arrow or "." in equation or len(active) > 2:
        raise NoRule
    values = [plain(o) for o in operands]
    push = _einsum_push(equation, terms, output, values, active)
    y = torch.einsum(equation, *values)
    traced = [operands[i] for i in active]
    axes = {
        None if o.axis is None else output.find(terms[i][o.axis]) for i, o in zip(active, traced)
    }
    axis = axes.pop() if len(axes) == 1 and -1 not in axes else None
    if len(active) == 1:
        known = values if len(values) < 3 else None  # squares of one constant operand
        return call.tape.linear(traced[0], y, lambda t, c=values: push(t, c=c), axis, known)
    return call.tape.product(traced[0], traced[1], y, push, axis)


def _einsum_push(
    equation: str, terms: list[str], output: str, values: list[Tensor], active: list[int]
) -> Push:
    """The same sum with tangents, which have one axis more, for the traced operands."""
    extra = next(c for c in "ZYXWVUTSRQPONM" if c not in equation)

    def push(*tangents: Tensor, c: list[Tensor] = values) -> Tensor:
        words, factors = list(terms), list(c)
        for i, t in zip(active, tangents):
            stacked = t.ndim > values[i].ndim
            words[i] = extra + terms[i] if stacked else terms[i]
            factors[i] = t.reshape(t.shape[0], *values[i].shape) if stacked else t
        stacked_output = extra + output if extra in "".join(words) else output
        return torch.einsum(f"{','.join(words)}->{stacked_output}", *factors)

    return push


@structural("bilinear")
def bilinear(call: Call, input1: Any, input2: Any, weight: Tensor, bias: Any = None) -> Any:
    """``x_1' W_o x_2`` for every output o."""
    y = torch.einsum("bi,oij,bj->bo", input1.flatten(0, -2), weight, input2.flatten(0, -2))
    y = y.reshape(*input1.shape[:-1], len(weight))
    return y if bias is None else y + bias


@structural("addcmul")
def addcmul(call: Call, input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """``input + value * tensor1 * tensor2``."""
    return input + tensor1 * tensor2 * value


@structural("addcdiv")
def addcdiv(call: Call, input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """``input + value * tensor1 / tensor2``."""
    return input + tensor1 / tensor2 * value


@structural("lerp")
def lerp(call: Call, input: Any, end: Any, weight: Any) -> Any:
    """``input + weight * (end - input)``."""
    return input + (end - input) * weight


@structural("outer", "ger")
def outer(call: Call, input: Any, vec2: Any) -> Any:
    """All products of two vectors."""
    return input.unsqueeze(-1) * vec2


@structural("dot", "vdot", "inner", "linalg_vecdot")
def inner(call: Call, input: Any, other: Any, dim: int = -1) -> Any:
    """A sum of products along the last axis."""
    vectors = input.ndim == other.ndim == 1 or call.name == "linalg_vecdot"
    if input.is_complex() or not vectors:
        raise NoRule
    return torch.sum(input * other, dim)


@structural("cross", "linalg_cross")
def cross(call: Call, input: Any, other: Any, dim: Any = -1) -> Any:
    """The vector product along an axis of length three."""
    if dim is None:
        raise NoRule
    a, b = torch.broadcast_tensors(input, other)
    return a.roll(-1, dim) * b.roll(1, dim) - a.roll(1, dim) * b.roll(-1, dim)


@structural("hypot")
def hypot(call: Call, input: Any, other: Any) -> Any:
    """The length of a vector with two components."""
    return torch.sqrt(torch.square(input) + torch.square(other))

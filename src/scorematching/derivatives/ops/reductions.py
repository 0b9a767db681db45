"""Operations over axes: sums, softmax, variances, norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching.derivatives.engine.tape import ONES, constant_like, mean_square
from scorematching.derivatives.engine.trace import Call, NoRule, Traced, plain
from scorematching.derivatives.ops.linear import axes_of
from scorematching.derivatives.ops.masked import masked_rows_if_any, masked_rows_of_softmax
from scorematching.derivatives.ops.registry import structural


@structural("sum", "mean")
def reduce(call: Call, x: Traced, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """A sum or mean over axes."""
    if dtype is not None and dtype != x.dtype:
        return reduce(call, x.to(dtype), dim, keepdim)
    ndim = x.p.ndim
    dims = axes_of(dim, ndim)
    axis = None if x.axis is None or x.axis in dims else x.axis
    if axis is not None and not keepdim:
        axis -= sum(d < axis for d in dims)
    operation = torch.sum if call.name == "sum" else torch.mean
    y = operation(x.p, dims, keepdim=keepdim) if ndim else x.p * 1
    share = y.numel() / max(x.p.numel(), 1)

    def push(t: Tensor, c: float | None = None) -> Tensor:
        reduced = operation(t, [d - ndim for d in dims], keepdim=keepdim) if ndim else t
        return reduced if c is None else reduced * (c / share)

    return call.tape.linear(x, y, push, axis, ONES if operation is torch.sum else share)


@structural("softmax", "_softmax", "special_softmax")
def softmax(call: Call, x: Any, dim: Any = None, *args: Any, dtype: Any = None, **kw: Any) -> Any:
    """Exponentials divided by their sum, with a closed second derivative."""
    x = _softmax_input(x, dim, args, dtype)
    dim = dim % x.p.ndim - x.p.ndim
    y = torch.softmax(x.p, dim)
    rows = masked_rows_of_softmax(x.p, y, dim)
    if rows is not None:
        x = torch.masked_fill(x, rows, 0.0)
        return torch.masked_fill(_softmax(call, x, torch.softmax(x.p, dim), dim), rows, torch.nan)
    return _softmax(call, x, y, dim)


def _softmax(call: Call, x: Traced, y: Tensor, dim: int) -> Any:
    """``y = softmax(x)`` along an axis counted from the right, with a value in every row."""
    if not call.tape.closed_forms:
        e = torch.exp(x - x.p.amax(dim, keepdim=True).detach())
        return e / torch.sum(e, dim, keepdim=True)

    def first(u: Tensor) -> Tensor:  # y (u - y.u), in one kernel
        u = u.to(y.dtype)
        return torch._softmax_backward_data(u, y.expand_as(u), dim, y.dtype)

    def second(u: Tensor) -> Tensor:
        square = mean_square(u - (y * u).sum(dim, keepdim=True))
        return first(square)[None]

    return call.tape.dense(x, y, first, second, x.axis)


@structural("_safe_softmax")
def safe_softmax(call: Call, x: Any, dim: Any, dtype: Any = None) -> Any:
    """Softmax, with zeros where all entries are minus infinity."""
    x = x if dtype is None else x.to(dtype)
    rows = masked_rows_if_any(x.p, [dim])
    if rows is None:
        return torch.softmax(x, dim)
    return torch.masked_fill(torch.softmax(torch.masked_fill(x, rows, 0.0), dim), rows, 0.0)


@structural("log_softmax", "_log_softmax", "special_log_softmax")
def log_softmax(
    call: Call, x: Any, dim: Any = None, *args: Any, dtype: Any = None, **kw: Any
) -> Any:
    """The logarithm of softmax."""
    x = _softmax_input(x, dim, args, dtype)
    return x - torch.logsumexp(x, dim, keepdim=True)


def _softmax_input(x: Any, dim: Any, args: Any, dtype: Any) -> Any:
    """The argument of softmax, in the dtype that is asked for by position or by name."""
    if dim is None or x.ndim == 0:
        raise NoRule
    dtype = next((a for a in args if isinstance(a, torch.dtype)), dtype)
    return x if dtype is None else x.to(dtype)


@structural("logsumexp", "special_logsumexp")
def logsumexp(call: Call, x: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of a sum of exponentials, with a closed second derivative."""
    dims = axes_of(dim, x.p.ndim)
    rows = masked_rows_if_any(x.p, dims)
    if rows is None:
        z = _logsumexp(call, x, dims)
    else:
        z = _logsumexp(call, torch.masked_fill(x, rows, 0.0), dims)
        z = torch.masked_fill(z, rows, -torch.inf)
    return z if keepdim else torch.squeeze(z, tuple(dims))


def _logsumexp(call: Call, x: Any, dims: list[int]) -> Any:
    """The same with axes of length one, for rows of which none is minus infinity throughout."""
    if not call.tape.closed_forms:
        top = x.p.amax(dims, keepdim=True).detach()
        return torch.log(torch.sum(torch.exp(x - top), dims, keepdim=True)) + top
    y = torch.logsumexp(x.p, dims, keepdim=True)
    weight = torch.exp(x.p - y)
    back = [d - x.p.ndim for d in dims]

    def second(u: Tensor) -> Tensor:
        centred = u - (weight * u).sum(back, keepdim=True)
        return (weight * centred * centred).sum(back, keepdim=True)

    axis = None if x.axis in dims else x.axis
    return call.tape.dense(x, y, lambda u: (weight * u).sum(back, keepdim=True), second, axis)


@structural("logaddexp")
def logaddexp(call: Call, input: Any, other: Any) -> Any:
    """``log(exp(a) + exp(b))``."""
    a, b = torch.broadcast_tensors(input, other)
    return torch.logsumexp(torch.stack([a, b]), 0)


@structural("atan2", "arctan2")
def atan2(call: Call, input: Any, other: Any) -> Any:
    """The angle of a point, from ``atan`` of a ratio that is at most one and a constant."""
    y, x = torch.broadcast_tensors(torch.as_tensor(input), torch.as_tensor(other))
    py, px = plain(y), plain(x)
    steep = py.abs() > px.abs()
    one = torch.ones_like(px)
    ratio = torch.where(steep, -x, y) / torch.where(steep, y, torch.where(px == 0, one, x))
    angle = torch.atan(ratio)
    return angle + (torch.atan2(py, px) - plain(angle)).detach()


@structural("prod")
def prod(call: Call, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """A product over an axis, by multiplying halves, which is right for zeros too."""
    if dim is None:
        return prod(call, x.reshape(-1), 0)
    halves = x.movedim(dim, 0)
    while halves.shape[0] > 1:
        half = halves.shape[0] // 2
        rest = [halves[2 * half :]] if halves.shape[0] % 2 else []
        halves = torch.cat([halves[:half] * halves[half : 2 * half], *rest])
    y = halves[0]
    return y.unsqueeze(dim) if keepdim else y


@structural("cumprod")
def cumprod(call: Call, x: Any, dim: int, **kwargs: Any) -> Any:
    """Running products, in log2(length) multiplications, which is right for zeros too."""
    y, step = x.movedim(dim, 0), 1
    while step < y.shape[0]:
        y = torch.cat([y[:step], y[step:] * y[:-step]])
        step *= 2
    return y.movedim(0, dim)


@structural("var", "std", "var_mean", "std_mean")
def variance(
    call: Call,
    x: Any,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    """A variance or standard deviation over axes, with the mean where it is asked for."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = axes_of(dim, x.p.ndim)
    count = torch.Size(x.p.shape[d] for d in dims).numel()
    less = correction if correction is not None else float(unbiased)
    mean = torch.mean(x, dims, keepdim=True)
    y = torch.sum(torch.square(x - mean), dims, keepdim=keepdim) / (count - less)
    y = torch.sqrt(y) if call.name.startswith("std") else y
    return (y, mean if keepdim else torch.squeeze(mean, tuple(dims))) if "mean" in call.name else y


@structural("norm", "linalg_vector_norm", "linalg_norm")
def norm(
    call: Call, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Any:
    """A Euclidean norm, or the sum of absolute values."""
    order = kwargs.pop("p", ord)
    dims = axes_of(dim, x.ndim)
    matrix = call.func is torch.linalg.norm and len(dims) == 2 and order not in (None, "fro")
    if matrix or any(v is not None for v in kwargs.values()) or x.is_complex():
        raise NoRule
    if order in (2, 2.0, None, "fro"):
        return torch.sqrt(torch.sum(torch.square(x), dims, keepdim=keepdim))
    if order == 1:
        return torch.sum(torch.abs(x), dims, keepdim=keepdim)
    if isinstance(order, (int, float)) and 1 < order < float("inf"):
        return torch.sum(torch.abs(x) ** order, dims, keepdim=keepdim) ** (1 / order)
    raise NoRule


@structural("linalg_matrix_norm")
def matrix_norm(
    call: Call, x: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, **kw: Any
) -> Any:
    """A Frobenius norm of matrices."""
    if ord != "fro" or any(v is not None for v in kw.values()):
        raise NoRule
    return torch.sqrt(torch.sum(torch.square(x), axes_of(dim, x.p.ndim), keepdim=keepdim))


@structural("copysign")
def copysign(call: Call, input: Any, other: Any) -> Any:
    """The magnitude of one number with the sign of another, which is taken as constant."""
    if not isinstance(input, Traced):
        return torch.copysign(plain(input), plain(other))
    same = torch.signbit(input.p) == torch.signbit(constant_like(plain(other), input.p))
    return torch.where(same, input, -input)


@structural("xlogy", "special_xlogy")
def xlogy(call: Call, input: Any, other: Any) -> Any:
    """``x log y``, zero where x is a constant zero."""
    if isinstance(input, Traced):
        return input * torch.log(
            other if isinstance(other, Tensor) else constant_like(other, input.p)
        )
    zero = (input if isinstance(input, Tensor) else constant_like(input, other.p)) == 0
    safe = torch.where(zero, torch.ones_like(plain(other)), other)
    return input * torch.log(safe)


@structural("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", inplace=3)
def dropout(
    call: Call, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """A product with a random mask."""
    if not training or p == 0:
        return x
    return x * call.func(torch.ones_like(x.p), p, True)

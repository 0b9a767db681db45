"""Rules of operations that gather over axes: softmax, variances, extremes, and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scorematching.derivatives import composed
from scorematching.derivatives.structural import axes_of
from scorematching.derivatives.tracing import RULES, Tape, Traced, Untraceable, name_of, plain


def _extreme(tape: Tape, func: Any, a: Any, b: Any) -> Any:
    first = plain(a) >= plain(b) if name_of(func) in ("maximum", "max") else plain(a) <= plain(b)
    return torch.where(first, a, b)


def _select_extreme(tape: Tape, func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """``max`` or ``min``: of two tensors, or along an axis, where the winner's tangent counts."""
    if args and isinstance(args[0], (Tensor, Traced)):
        return _extreme(tape, func, x, args[0])
    dim = kwargs.get("dim", args[0] if args else None)
    if dim is None:
        raise Untraceable(f"{name_of(func)}: over all axes")
    keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    result = func(x.p, *args, **kwargs)
    index = result if isinstance(result, Tensor) else result[1]
    if isinstance(result, Tensor):
        raise Untraceable(f"{name_of(func)}: ties share the gradient")
    index = index if keepdim else index.unsqueeze(dim)
    picked = torch.gather(x, dim, index)
    values = picked if keepdim else torch.squeeze(picked, dim)
    return type(result)((values, result[1]))


def _softmax(tape: Tape, func: Any, x: Any, dim: int | None = None, *args: Any, **kw: Any) -> Any:
    if dim is None or any(isinstance(v, torch.dtype) for v in (*args, *kw.values())):
        raise Untraceable("softmax: unusual arguments")
    if not tape.closed_forms:
        e = torch.exp(x - x.p.amax(dim, keepdim=True).detach())
        return e / torch.sum(e, dim, keepdim=True)
    dim = dim % x.p.ndim - x.p.ndim
    y = torch.softmax(x.p, dim)

    def bend(u: Tensor) -> Tensor:
        centred = u - (y * u).sum(dim, keepdim=True)
        square = centred * centred
        return y * (square - (y * square).sum(dim, keepdim=True))

    return tape.dense(x, y, lambda u: y * (u - (y * u).sum(dim, keepdim=True)), bend, x.axis)


def _log_softmax(
    tape: Tape, func: Any, x: Any, dim: int | None = None, *args: Any, **kw: Any
) -> Any:
    if dim is None or any(isinstance(v, torch.dtype) for v in (*args, *kw.values())):
        raise Untraceable("log_softmax: unusual arguments")
    return x - torch.logsumexp(x, dim, keepdim=True)


def _logsumexp(tape: Tape, func: Any, x: Any, dim: Any, keepdim: bool = False) -> Any:
    dims = axes_of(dim, x.p.ndim)
    top = x.p.amax(dims, keepdim=True).detach()
    if not tape.closed_forms:
        y = torch.log(torch.sum(torch.exp(x - top), dims, keepdim=True)) + top
        return y if keepdim else _drop(y, dims)
    y = torch.logsumexp(x.p, dims, keepdim=True)
    weight = torch.exp(x.p - y)
    back = [d - x.p.ndim for d in dims]

    def bend(u: Tensor) -> Tensor:
        centred = u - (weight * u).sum(back, keepdim=True)
        return (weight * centred * centred).sum(back, keepdim=True)

    axis = None if x.axis in dims else x.axis
    z = tape.dense(x, y, lambda u: (weight * u).sum(back, keepdim=True), bend, axis)
    return z if keepdim else _drop(z, dims)


def _drop(y: Any, dims: Sequence[int]) -> Any:
    for d in sorted(dims, reverse=True):
        y = torch.squeeze(y, d)
    return y


def _dropout(
    tape: Tape, func: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    if not training or p == 0:
        return x
    tape.random.append(name_of(func))
    return x * func(torch.ones_like(x.p), p, True)


def _batch_norm(
    tape: Tape, func: Any, x: Any, running_mean: Any, running_var: Any, weight: Any = None,
    bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if training:
        raise composed.coupled_batch()
    return composed.instance_norm(x, running_mean, running_var, weight, bias, False, eps=eps)


def _variance(
    tape: Tape, func: Any, x: Any, dim: Any = None, unbiased: bool = True,
    keepdim: bool = False, *, correction: float | None = None,
) -> Any:  # fmt: skip
    dims = axes_of(dim, x.p.ndim)
    count = torch.Size(x.p.shape[d] for d in dims).numel()
    less = correction if correction is not None else float(unbiased)
    centred = x - torch.mean(x, dims, keepdim=True)
    y = torch.sum(torch.square(centred), dims, keepdim=keepdim) / (count - less)
    return torch.sqrt(y) if name_of(func) == "std" else y


def _norm(
    tape: Tape, func: Any, x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False,
    **kwargs: Any,
) -> Any:  # fmt: skip
    order = kwargs.pop("ord", p)
    if order not in (2, 2.0, None, "fro") or any(v is not None for v in kwargs.values()):
        raise Untraceable(f"{name_of(func)}: other than Euclidean")
    return torch.sqrt(torch.sum(torch.square(x), axes_of(dim, x.p.ndim), keepdim=keepdim))


RULES.update({
    "maximum": _extreme, "minimum": _extreme, "max": _select_extreme, "min": _select_extreme,
    "softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp,
    "dropout": _dropout, "dropout2d": _dropout, "dropout3d": _dropout,
    "feature_dropout": _dropout, "batch_norm": _batch_norm, "var": _variance, "std": _variance,
    "norm": _norm, "linalg_norm": _norm, "linalg_vector_norm": _norm,
})  # fmt: skip

"""Matrices: determinants, inverses, solutions and factorisations, with closed derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching.derivatives.engine.trace import Call, NoRule, Traced, plain
from scorematching.derivatives.ops.registry import structural


def _batch(x: Traced) -> int | None:
    """The batch axis, where it is not one of the two axes of a matrix."""
    return x.axis if x.axis is not None and x.axis < x.p.ndim - 2 else None


@structural("logdet")
def logdet(call: Call, x: Any) -> Any:
    """``log det A``: first ``tr(A^-1 U)``, second ``-tr(A^-1 U A^-1 U)``."""
    inverse, y = torch.linalg.inv(x.p), torch.logdet(x.p)

    def first(u: Tensor) -> Tensor:
        return (inverse * u.mT).sum((-2, -1))

    def second(u: Tensor) -> Tensor:
        w = inverse @ u
        return -(w * w.mT).sum((-2, -1))

    return call.tape.dense(x, y, first, second, _batch(x))


@structural("slogdet", "linalg_slogdet", "_linalg_slogdet")
def slogdet(call: Call, x: Any) -> Any:
    """The sign, which is constant, and the logarithm of ``|det A|``."""
    result = call.func(x.p)
    negative = torch.where(result[0] < 0, -1.0, 1.0).to(x.p.dtype)
    flipped = torch.cat([x[..., :1, :] * negative[..., None, None], x[..., 1:, :]], -2)
    return _replaced(result, 1, torch.logdet(flipped))


@structural("det", "linalg_det", "_linalg_det")
def det(call: Call, x: Any) -> Any:
    """``det A = sign exp(log |det A|)``, where the matrix is not singular."""
    result = call.func(x.p)
    sign, log = torch.linalg.slogdet(x)
    if not bool(torch.isfinite(log.p).all()):
        raise NoRule
    y = sign * torch.exp(log)
    return y if isinstance(result, Tensor) else _replaced(result, 0, y)


@structural("linalg_inv", "inverse", "linalg_inv_ex")
def inverse(call: Call, x: Any, **kwargs: Any) -> Any:
    """``Y = A^-1``: first ``-Y U Y``, second ``2 Y U Y U Y``."""
    result = call.func(x.p, **kwargs)
    y = result if isinstance(result, Tensor) else result[0]
    z = call.tape.dense(x, y, lambda u: -(y @ u @ y), lambda u: 2 * (y @ u @ y @ u @ y), _batch(x))
    return z if isinstance(result, Tensor) else _replaced(result, 0, z)


def _replaced(result: Any, place: int, value: Any) -> Any:
    """A tuple of results, one of them traced; torch's named tuples keep their type."""
    parts = [value if i == place else part for i, part in enumerate(result)]
    return tuple(parts) if type(result) is tuple else type(result)(parts)


@structural("linalg_solve", "_linalg_solve_ex", "linalg_solve_ex")
def solve(call: Call, A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """``A X = B``, by the inverse of A."""
    if not left:
        raise NoRule
    if call.name != "linalg_solve":
        return _replaced(call.func(plain(A), plain(B)), 0, torch.linalg.solve(A, B))
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and A.shape[:-1] == B.shape)
    right = B.unsqueeze(-1) if vector else B
    y = torch.linalg.inv(A) @ right
    return y.squeeze(-1) if vector else y


@structural("linalg_cholesky", "cholesky", "linalg_cholesky_ex")
def cholesky(call: Call, x: Any, upper: bool = False, **kwargs: Any) -> Any:
    """``A = L L'``: first ``L Phi(S)``, with S = L^-1 U L^-T and Phi the lower half."""
    if upper:
        raise NoRule
    result = call.func(x.p, **kwargs)
    y = result if isinstance(result, Tensor) else result[0]
    identity = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    inverse = torch.linalg.solve_triangular(y, identity, upper=False)

    def half(s: Tensor) -> Tensor:
        return s.tril(-1) + 0.5 * torch.diag_embed(s.diagonal(dim1=-2, dim2=-1))

    def first(u: Tensor) -> Tensor:
        return y @ half(inverse @ u @ inverse.mT)

    def second(u: Tensor) -> Tensor:
        p = half(inverse @ u @ inverse.mT)
        return y @ half(-2 * (p @ p.mT))

    z = call.tape.dense(x, y, first, second, _batch(x))
    return z if isinstance(result, Tensor) else _replaced(result, 0, z)


@structural("linalg_solve_triangular")
def solve_triangular(
    call: Call, A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """``A X = B`` for triangular A, by its inverse where A depends on the points."""
    if not left or unitriangular:
        raise NoRule
    if isinstance(A, Traced):
        return torch.linalg.inv(A.triu() if upper else A.tril()) @ B
    y = torch.linalg.solve_triangular(A, B.p, upper=upper)
    push = lambda t: torch.linalg.solve_triangular(A, t, upper=upper)  # noqa: E731
    return call.tape.linear(B, y, push, _batch(B))


@structural("cholesky_solve")
def cholesky_solve(call: Call, B: Any, L: Any, upper: bool = False) -> Any:
    """The solution of ``L L' X = B``."""
    lower = L.mT if upper else L
    half = torch.linalg.solve_triangular(lower, B, upper=False)
    return torch.linalg.solve_triangular(lower.mT, half, upper=True)


@structural("cholesky_inverse")
def cholesky_inverse(call: Call, L: Any, upper: bool = False) -> Any:
    """``(L L')^-1`` from the factor."""
    root = torch.linalg.inv(L.mT.tril() if upper else L.tril())
    return root.mT @ root

"""Squared distances and weighted differences between two sets of points, by matrix products.

Both are computed relative to the middle of the second set, so that coordinates far from the origin
lose no digits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_type
from scorematching._memory import Budget
from scorematching._memory import in_chunks as rows_in_chunks

_MAX_ENTRIES = 2**24
"""Entries of one matrix of distances that `in_chunks` keeps in memory."""

_ROWS = 61
"""Points that determine the middle of a set; a prime number, since kinds of rows may take turns."""


def widened(x: Tensor) -> Tensor:
    """Points in double precision, where the device has it."""
    return x if x.device.type == "mps" else x.double()


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """``|x_i - y_j|^2``: ``(*B, M, D), (*B, N, D) -> (*B, M, N)``, by one matrix product.

    Computed in double precision: points a thousand bandwidths apart keep ten digits. Rounding may
    leave -1e-16 instead of 0.

    Example:
        >>> squared_distances(torch.tensor([[1e4]]), torch.tensor([[1e4], [1e4 + 2]])).tolist()
        [[0.0, 4.0]]
    """
    _check_sets(x, y)
    x_wide, y_wide = widened(x), widened(y)
    centre = _centre(y_wide)
    a, b = x_wide - centre, y_wide - centre
    squares = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
    return (squares - 2 * (a @ b.mT)).to(x.dtype)


def difference_sum(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``sum_j w_ij (x_i - y_j)``: ``(*B, M, N), (*B, M, D), (*B, N, D) -> (*B, M, D)``."""
    centre = _centre(y)
    return weights.sum(-1, keepdim=True) * (x - centre) - weights @ (y - centre)


def difference_products(x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
    """``(x_i - y_j) . c_j``: ``(*B, M, D), (*B, N, D), (*B, N, D) -> (*B, M, N)``."""
    centre = _centre(y)
    return (x - centre) @ vectors.mT - ((y - centre) * vectors).sum(-1)[..., None, :]


def in_chunks(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    columns: int,
    chunk_size: int | None = None,
    budget: Budget | None = None,
) -> Tensor:
    """Apply a function that builds a matrix of points against others to some points at a time.

    Args:
        function: ``(*B, n, D) -> (*B, n, ...)`` for any n.
        x: points ``(*B, N, D)``.
        columns: number of columns of the matrix that the function builds.
        chunk_size: n; None limits the entries of that matrix.
        budget: of the computation; chunks then take what is left of it.

    Example:
        >>> x = torch.randn(5, 2)
        >>> torch.equal(in_chunks(torch.square, x, columns=3, chunk_size=2), x.square())
        True
    """
    check_set(x, "x")
    check_type(function, Callable, "function must be callable", "pass one of points (*B, n, D)")
    axis = x.ndim - 2
    if budget is not None:
        rows = x.movedim(axis, 0)

        def moved(part: Tensor) -> Tensor:
            return function(part.movedim(0, axis)).movedim(axis, 0)

        return rows_in_chunks(moved, [rows], len(rows), budget).movedim(0, axis)
    if chunk_size is None:
        chunk_size = max(1, _MAX_ENTRIES // max(1, columns * x.shape[:-2].numel()))
    check_count(chunk_size, "chunk_size", "None limits the memory")
    if x.shape[axis] <= chunk_size:
        return function(x)
    return torch.cat([function(part) for part in x.split(int(chunk_size), dim=axis)], dim=axis)


def check_set(x: Any, name: str) -> None:
    """Require points ``(*B, M, D)``, in a precision in which squares of distances have digits."""
    advice = f"convert them with torch.as_tensor({name}, dtype=torch.float64)"
    check_type(x, Tensor, f"{name} must be a torch.Tensor of points", advice)
    if not x.is_floating_point() or x.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(f"{name} must be in single or double precision, got {x.dtype}; {advice}")
    if x.ndim < 2:
        raise ValueError(
            f"{name} must have shape (*B, M, D), got {tuple(x.shape)}; for M numbers add an axis "
            f"with {name}[:, None]"
        )


def _check_sets(x: Any, y: Any) -> None:
    """Require two sets of points, or two batches of as many."""
    check_set(x, "x")
    check_set(y, "y")
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"x must have {y.shape[-1]} coordinates, as many as y, got {x.shape[-1]}; "
            "evaluate a score at points of the dimension of its samples"
        )
    if y.shape[-2] == 0:
        raise ValueError(f"y must hold at least one point, got shape {tuple(y.shape)}")
    if any(m != n and 1 not in (m, n) for m, n in zip(x.shape[-3::-1], y.shape[-3::-1])):
        raise ValueError(
            f"x and y must be of as many sets, (*B, M, D) and (*B, N, D), got {tuple(x.shape)} "
            f"and {tuple(y.shape)}; expand one to the sets of the other"
        )


def _centre(y: Tensor) -> Tensor:
    """About the median of y, ``(*B, 1, D)``: one point far out would move a mean.

    All sizes are expressions of that of y, which may be unknown to `torch.compile`.
    """
    size = y.shape[-2]
    count = min(size, _ROWS)
    rows = torch.arange(count, device=y.device) * size // count
    return y.detach().index_select(-2, rows).sort(-2).values[..., count // 2, None, :]

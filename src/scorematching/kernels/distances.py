"""Squared distances and weighted differences between two sets of points, by matrix products.

Both are computed relative to the mean of the second set, so that coordinates far from the origin
lose no digits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from scorematching._checks import check_count
from scorematching._memory import Budget
from scorematching._memory import in_chunks as rows_in_chunks

_MAX_ENTRIES = 2**24
"""Entries of one matrix of distances that `in_chunks` keeps in memory."""


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
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"x must have {y.shape[-1]} coordinates, as many as y, got {x.shape[-1]}; "
            "evaluate a score at points of the dimension of its samples"
        )
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
    return torch.cat([function(part) for part in x.split(chunk_size, dim=axis)], dim=axis)


def _centre(y: Tensor) -> Tensor:
    return y.detach().mean(-2, keepdim=True)

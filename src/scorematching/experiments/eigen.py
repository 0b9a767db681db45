"""Eigenpairs of many kernel matrices at once on a GPU.

Spectral score estimation takes the eigenpairs of 128 matrices of 100 x 100 at every step. Torch
hands them to cuSOLVER one by one, about 2 ms each, and the call cannot be recorded in a CUDA graph.
Here one program takes each matrix, and all go on side by side:

* a Cholesky factor with pivots, ``K = W' W``, one row of W at a time;
* rotations of pairs of rows until all are orthogonal (the one-sided Jacobi method). Then
  ``w_j = sqrt(mu_j) u_j``: eigenvalues are the squares of the rows' lengths, eigenvectors their
  directions.

In each of ``n - 1`` rounds of a sweep, n / 2 pairs that share no row are turned at once; the
rounds meet every pair once, like a tournament. Eight or nine sweeps suffice for 100 rows.

Reference: Veselic and Hari (1989), A note on a one-sided Jacobi algorithm.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from scorematching._triton import is_available, program
from scorematching.estimators import spectral

tl: Any = None  # the language of Triton, once a program runs
_SWEEPS = 20


def eigenpairs(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, largest first, and eigenvectors of positive semidefinite matrices.

    Args:
        matrices: ``(*B, n, n)``, symmetric, with no negative eigenvalue beyond rounding.

    Returns:
        Values ``(*B, n)``, and vectors as columns, ``(*B, n, n)``. On a GPU with Triton,
        eigenvalues below 1e-13 of the largest are zero, and their vectors mean nothing.

    Example:
        >>> import torch
        >>> values, vectors = eigenpairs(torch.diag(torch.tensor([1.0, 4.0])))
        >>> values.tolist()
        [4.0, 1.0]
    """
    if matrices.is_cuda and is_available():
        return _by_rotations(matrices)
    return spectral.eigenpairs(matrices)


def _by_rotations(matrices: Tensor) -> tuple[Tensor, Tensor]:
    n = matrices.shape[-1]
    K = matrices.detach().double().reshape(-1, n, n).contiguous()
    even = n + n % 2  # a row of zeros makes up the last pair
    W = K.new_zeros(len(K), even, n)
    width = 1 << (even - 1).bit_length()
    pairs = min(32, width // 2)
    program(_rotate)[(len(K),)](K, W, _SWEEPS, n, even, width, pairs, num_warps=32, num_stages=1)
    squares, order = W.square().sum(-1).sort(-1, descending=True)
    rows = W.gather(1, order[..., None].expand_as(W))[:, :n]
    values = squares[:, :n]
    vectors = (rows * values.clamp(min=1e-300).rsqrt()[..., None]).mT
    shape = matrices.shape
    return values.reshape(shape[:-1]).to(matrices), vectors.reshape(shape).to(matrices)


def _rotate(  # type: ignore[no-untyped-def]
    matrices,
    rows,
    sweeps,
    n: tl.constexpr,
    even: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Rows of W for one matrix, first of the Cholesky factor, then orthogonal; on the device."""
    K = matrices + tl.program_id(0) * n * n
    W = rows + tl.program_id(0) * even * n
    column = tl.arange(0, WIDTH)
    inside = column < n

    # Each row takes the largest diagonal entry that is left, and clears it.
    left = tl.load(K + column * n + column, inside, 0.0)
    floor = tl.max(left, 0) * n * 1e-16
    for k in range(n):
        pivot, j = tl.max(left, 0), tl.argmax(left, 0)
        row = tl.load(K + j * n + column, inside, 0.0)
        for start in range(0, k, 16):
            m = start + tl.arange(0, 16)
            before = (m < k)[:, None] & inside[None, :]
            earlier = tl.load(W + m[:, None] * n + column[None, :], before, 0.0)
            share = tl.load(W + m * n + j, m < k, 0.0)
            row -= tl.sum(earlier * share[:, None], 0)
        row = tl.where(pivot > floor, row / tl.sqrt(tl.maximum(pivot, floor)), 0.0)
        tl.store(W + k * n + column, row, inside)
        left = tl.where(column == j, 0.0, tl.maximum(left - row * row, 0.0))
        tl.debug_barrier()

    # A round turns pairs that share no row, some at a time for want of registers.
    last, sweep, worst = even - 1, 0, floor * 0 + 1
    while (sweep < sweeps) & (worst > 1e-6):  # a sweep squares what is left
        worst = floor * 0
        for r in range(last):
            for start in range(0, even // 2, PAIRS):
                pair = start + tl.arange(0, PAIRS)
                mask = (pair < even // 2)[:, None] & inside[None, :]
                p, q = (r + pair) % last, tl.where(pair == 0, last, (r + last - pair) % last)
                at_p = W + p[:, None] * n + column[None, :]
                at_q = W + q[:, None] * n + column[None, :]
                a, b = tl.load(at_p, mask, 0.0), tl.load(at_q, mask, 0.0)
                aa, bb, ab = tl.sum(a * a, 1), tl.sum(b * b, 1), tl.sum(a * b, 1)
                turned = ab * ab > 1e-32 * aa * bb
                zeta = (bb - aa) / tl.where(turned, 2 * ab, 1.0)
                t = tl.where(zeta < 0, -1.0, 1.0) / (tl.abs(zeta) + tl.sqrt(1 + zeta * zeta))
                t = tl.where(turned, t, 0.0)
                cosine = 1 / tl.sqrt(1 + t * t)
                sine = cosine * t
                tl.store(at_p, cosine[:, None] * a - sine[:, None] * b, mask)
                tl.store(at_q, sine[:, None] * a + cosine[:, None] * b, mask)
                # Rows that are all but zero need not be orthogonal to anything.
                counted = tl.minimum(aa, bb) > 1e6 * floor
                angle = tl.where(counted, ab * ab / tl.maximum(aa * bb, 1e-300), 0.0)
                worst = tl.maximum(worst, tl.sqrt(tl.max(angle, 0)))
            tl.debug_barrier()
        sweep += 1

"""Eigenpairs of many kernel matrices at once on a GPU.

Spectral score estimation needs the eigenpairs of 128 matrices of 100 x 100 at every step. Torch
calls cuSOLVER for one matrix after the other, and the call cannot be recorded in a CUDA graph.
Here one Triton program computes one matrix, and all programs run in parallel:

* a Cholesky factor with pivots, ``K = W' W``, one row of W at a time;
* rotations of pairs of rows until all are orthogonal (the one-sided Jacobi method). Then
  ``w_j = sqrt(mu_j) u_j``: eigenvalues are the squared lengths of the rows, eigenvectors their
  directions.

Most of the time is spent moving rows between memory and registers. So rotations are in single
precision, which leaves errors of 1e-6 of the largest eigenvalue, far below those of an estimate
from 100 samples. And rows form blocks of four: when two blocks are loaded, all sixteen pairs
between them are rotated. In each round of a sweep all blocks are paired, and after all rounds
every two blocks have been paired once, as in a round-robin tournament.

Reference: Veselic and Hari (1989), A note on a one-sided Jacobi algorithm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching._triton import is_available, program
from scorematching.kernels import spectral

# Set by `_triton.program` when a program is compiled.
tl: Any = None
turn: Any = None
_SWEEPS = 20


def eigenpairs(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, largest first, and eigenvectors of positive semidefinite matrices.

    Args:
        matrices: ``(*B, n, n)``, symmetric, with no negative eigenvalue beyond rounding.

    Returns:
        Values ``(*B, n)``, and vectors as columns, ``(*B, n, n)``. On a GPU with Triton, errors
        are of the order of 1e-6 of the largest eigenvalue; vectors of smaller ones are noise.

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
    W = _orthogonal_rows(K)
    lengths, order = W.double().norm(dim=-1).sort(-1, descending=True)
    rows = W.double().gather(1, order[..., None].expand_as(W))[:, :n]
    U = (rows / lengths[:, :n, None].clamp(min=1e-30)).mT
    values = (U * (K @ U)).sum(1)  # squares of the lengths, with the rounding of the rows undone
    shape = matrices.shape
    return values.reshape(shape[:-1]).to(matrices), U.reshape(shape).to(matrices)


@torch.library.custom_op(
    "reproduction::orthogonal_rows",
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor K) -> Tensor",
)
def _orthogonal_rows(K: Tensor) -> Tensor:
    """Orthogonal rows W with ``K = W' W`` in single precision, ``(B, n, n) -> (B, at least n, n)``.

    Rows beyond n are zero. This is an operator of its own, so that steps with it can be compiled.
    """
    n, blocks = K.shape[-1], _blocks(K)
    W, width = K.new_zeros(len(K), 4 * blocks, n), 1 << (n - 1).bit_length()
    program(_factor)[(len(K),)](K, W, n, 4 * blocks, width, num_warps=8)
    W, pairs = W.float(), min(16, 1 << (blocks // 2 - 1).bit_length())
    # A warp for each pair of blocks, and registers for its rows.
    options = {"num_warps": pairs, "maxnreg": 128}
    program(_rotate, _turn)[(len(K),)](W, _SWEEPS, n, blocks, width, pairs, **options)
    return W


@_orthogonal_rows.register_fake
def _(K: Tensor) -> Tensor:
    return K.new_empty(len(K), 4 * _blocks(K), K.shape[-1], dtype=torch.float32)


@_orthogonal_rows.register_kernel("cpu")
def _by_eigenvectors(K: Tensor) -> Tensor:
    """The same on a CPU, where only tests use it."""
    values, vectors = torch.linalg.eigh(K)
    rows = values.clamp(min=0).sqrt()[..., None] * vectors.mT
    return torch.nn.functional.pad(rows, (0, 0, 0, 4 * _blocks(K) - K.shape[-1])).float()


def _blocks(K: Tensor) -> int:
    """Number of blocks of four rows: an even one; the last is padded with rows of zeros."""
    return 2 * -(-K.shape[-1] // 8)


def _factor(  # type: ignore[no-untyped-def]
    matrices, factors, n: tl.constexpr, height: tl.constexpr, WIDTH: tl.constexpr
):
    """The Cholesky factor of one matrix, with pivots; on the device."""
    K = matrices + tl.program_id(0) * n * n
    W = factors + tl.program_id(0) * height * n
    column = tl.arange(0, WIDTH)
    inside = column < n
    # Each row eliminates the largest remaining diagonal entry.
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


def _rotate(  # type: ignore[no-untyped-def]
    factors, sweeps, n: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr
):
    """Rotations of the rows of one factor until they are orthogonal; on the device."""
    W = factors + tl.program_id(0) * (BLOCKS * 4 * n)
    column, last = tl.arange(0, WIDTH), BLOCKS - 1
    inside = column < n
    first = tl.load(W + column, inside, 0.0)
    tiny = 1e-8 * tl.sum(first * first, 0)
    sweep, left = 0, 0 * tiny + 1
    while (sweep < sweeps) & (left > 1e-3):  # convergence is quadratic
        worst = tl.zeros([PAIRS], tl.float32)
        for start in range(0, BLOCKS, PAIRS):
            block = start + tl.arange(0, PAIRS)
            mask = (block < BLOCKS)[:, None] & inside[None, :]
            at = W + block[:, None] * (4 * n) + column[None, :]
            a0, a1 = tl.load(at, mask, 0.0), tl.load(at + n, mask, 0.0)
            a2, a3 = tl.load(at + 2 * n, mask, 0.0), tl.load(at + 3 * n, mask, 0.0)
            for _ in tl.static_range(3):
                a0, a1, worst = turn(a0, a1, worst, tiny)
                a2, a3, worst = turn(a2, a3, worst, tiny)
                a1, a2, a3 = a2, a3, a1
            tl.store(at, a0, mask)
            tl.store(at + n, a1, mask)
            tl.store(at + 2 * n, a2, mask)
            tl.store(at + 3 * n, a3, mask)
        tl.debug_barrier()
        for r in range(last):
            for start in range(0, BLOCKS // 2, PAIRS):
                pair = start + tl.arange(0, PAIRS)
                mask = (pair < BLOCKS // 2)[:, None] & inside[None, :]
                p, q = (r + pair) % last, tl.where(pair == 0, last, (r + last - pair) % last)
                at, to = W + p[:, None] * (4 * n), W + q[:, None] * (4 * n)
                at, to = at + column[None, :], to + column[None, :]
                a0, a1 = tl.load(at, mask, 0.0), tl.load(at + n, mask, 0.0)
                a2, a3 = tl.load(at + 2 * n, mask, 0.0), tl.load(at + 3 * n, mask, 0.0)
                b0, b1 = tl.load(to, mask, 0.0), tl.load(to + n, mask, 0.0)
                b2, b3 = tl.load(to + 2 * n, mask, 0.0), tl.load(to + 3 * n, mask, 0.0)
                for _ in tl.static_range(4):
                    a0, b0, worst = turn(a0, b0, worst, tiny)
                    a1, b1, worst = turn(a1, b1, worst, tiny)
                    a2, b2, worst = turn(a2, b2, worst, tiny)
                    a3, b3, worst = turn(a3, b3, worst, tiny)
                    b0, b1, b2, b3 = b1, b2, b3, b0
                tl.store(at, a0, mask)
                tl.store(at + n, a1, mask)
                tl.store(at + 2 * n, a2, mask)
                tl.store(at + 3 * n, a3, mask)
                tl.store(to, b0, mask)
                tl.store(to + n, b1, mask)
                tl.store(to + 2 * n, b2, mask)
                tl.store(to + 3 * n, b3, mask)
            tl.debug_barrier()
        left = tl.sqrt(tl.max(worst, 0))
        sweep += 1


def _turn(a, b, worst, tiny):  # type: ignore[no-untyped-def]
    """Rows a and b rotated to be orthogonal, and the largest squared cosine so far."""
    aa, bb, ab = tl.sum(a * a, 1), tl.sum(b * b, 1), tl.sum(a * b, 1)
    turned = ab * ab > 1e-14 * aa * bb
    zeta = (bb - aa) / tl.where(turned, 2 * ab, 1.0)
    t = tl.where(zeta < 0, -1.0, 1.0) / (tl.abs(zeta) + tl.sqrt(1 + zeta * zeta))
    t = tl.where(turned, t, 0.0)
    cosine = 1 / tl.sqrt(1 + t * t)
    sine = cosine * t
    # Rows that are nearly zero do not count.
    angle = tl.where(tl.minimum(aa, bb) > tiny, ab * ab / tl.maximum(aa * bb, 1e-30), 0.0)
    turned_a = cosine[:, None] * a - sine[:, None] * b
    turned_b = sine[:, None] * a + cosine[:, None] * b
    return turned_a, turned_b, tl.maximum(worst, angle)

"""Laws of random directions: what sliced score matching projects on.

Every law has ``E[v v'] = I``, so that ``E[v' A v] = tr A`` and ``E[(v.s)^2] = |s|^2``; the sphere
therefore has radius sqrt(D). Directions that are drawn together may be made mutually orthogonal,
which lowers the variance of their average:

==================  =========================================================  ===============
option              who shares a group of mutually orthogonal directions       groups x size
==================  =========================================================  ===============
(neither)           nobody                                                     N M x 1
``orthogonal=True``  the M directions of one point                             N x M
``balanced=True``   all directions of the batch                                1 x N M
both                whole points, as many as fit in one orthogonal block       N/k x k M
==================  =========================================================  ===============

A group larger than a block is several blocks, independent of each other. None of this touches the
law of any one direction, with one exception: orthogonal signs, for which see `Rademacher`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from scorematching._checks import check_count, check_flag, check_generator, check_points
from scorematching._shapes import dimension
from scorematching._shares import deal


@dataclass(frozen=True)
class Projection(ABC):
    """A law of directions with ``E[v v'] = I``.

    Args:
        orthogonal: make the M directions of one point mutually orthogonal.
        balanced: make the directions orthogonal across the whole batch, so that
            ``sum_i v_i v_i'`` is close to ``N I``. Each direction alone keeps its law exactly.

    Example:
        >>> law: Projection = Gaussian(orthogonal=True)
        >>> law.sample(torch.zeros(5, 3), num=2).shape
        torch.Size([2, 5, 3])
    """

    orthogonal: bool = False
    balanced: bool = False

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name in ("orthogonal", "balanced"):
            advice = "the number of directions is num= in sample, num_projections= in objectives"
            check_flag(getattr(self, name), name, advice)

    def sample(self, x: Tensor, num: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Draw ``num`` directions for every point.

        Args:
            x: points ``(N, *event)``; only their shape, dtype and device matter.
            num: M, the number of directions per point.
            generator: source of randomness; None is torch's default generator.

        Returns:
            Directions ``(M, N, *event)``.
        """
        check_points(x)
        check_count(num, "num", "one direction per point is a good default")
        check_generator(generator, x)
        return self.draw(x, num, generator)

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        """``sample`` without its checks, for callers that have already made them."""
        n, d = x.shape[0], dimension(x)
        size = self._group_size(n, num, d)
        groups = -(-n * num // size)
        # Half precision has neither QR nor exact small integers; directions are drawn above it.
        like = x if x.element_size() >= 4 else x.new_empty(0, dtype=torch.float32)
        v = self._groups(like, groups, size, d, generator).to(x.dtype)
        if num == 1:
            return _cut(v.reshape(-1, d), 0, n).reshape(1, *x.shape)
        return v.reshape(-1, num, d)[:n].transpose(0, 1).reshape(num, *x.shape)

    def _group_size(self, n: int, num: int, d: int) -> int:
        """How many directions are made orthogonal together: the table of this module."""
        if self.balanced and self.orthogonal:
            return num * min(n, max(1, self._block(d) // num))
        if self.balanced:
            return num * n
        return num if self.orthogonal else 1

    @abstractmethod
    def _block(self, d: int) -> int:
        """The most directions of D coordinates that can be mutually orthogonal."""

    @abstractmethod
    def _groups(
        self, like: Tensor, groups: int, size: int, d: int, generator: torch.Generator | None
    ) -> Tensor:
        """Independent groups of directions, ``(groups, size, D)``, orthogonal within a block."""


@dataclass(frozen=True)
class Rademacher(Projection):
    """The uniform law on {-1, 1}^D, the default: least variance of ``v' A v`` among these laws.

    Balanced directions are rows of a Hadamard matrix under random column signs. The signs alone
    make each row exactly uniform; D random columns of the K x K matrix (K = D rounded up to a
    power of two) give any two rows the least favourable product ``-1/(K-1)`` on average, so a
    balanced batch is never noisier than an independent one by more than that, and is far quieter
    where the Hessian varies little from point to point. Cost: one product of N x log2 K bits.

    Orthogonal directions of one point, if it has several and no more than D, share out one vector
    of signs: each has a random M-th part of the coordinates, times sqrt(M), and zeros elsewhere.
    Their mean is never noisier than that of independent signs, ``(D - M) / (D - 1)`` times the
    variance where M divides D, and a linear layer that reads the points takes them at the price
    of one.

    Args:
        orthogonal: make the M directions of one point mutually orthogonal.
        balanced: make the directions orthogonal across the batch.

    Example:
        >>> x = torch.zeros(8, 4, dtype=torch.float64)
        >>> v = Rademacher().sample(x)[0]
        >>> torch.equal(v.T @ v, 8 * torch.eye(4, dtype=torch.float64))
        True
        >>> Rademacher().sample(x, num=4).square().sum(0)[0].tolist()
        [4.0, 4.0, 4.0, 4.0]
    """

    orthogonal: bool = True
    balanced: bool = True

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        """``sample`` without its checks, for callers that have already made them."""
        if not self.orthogonal or not 1 < num <= dimension(x):
            return super().draw(x, num, generator)
        return deal(super().draw(x, 1, generator)[0], num, generator)

    def _block(self, d: int) -> int:
        return 1 << (d - 1).bit_length()

    def _groups(
        self, like: Tensor, groups: int, size: int, d: int, generator: torch.Generator | None
    ) -> Tensor:
        order = self._block(d)
        rows = min(size, order)
        blocks = -(-size // rows)
        signs = random_signs(like, (groups, blocks, 1, d), generator)
        if rows == 1:
            return _cut(signs.reshape(groups, -1, d), 1, size)
        # Sorting random keys, unlike randperm, can be recorded in a CUDA graph.
        keys = torch.rand(order, generator=generator, device=like.device)
        columns = keys.argsort()[:d]
        pattern = _hadamard(rows, order, columns, like)
        return _cut((pattern * signs).reshape(groups, -1, d), 1, size)


@dataclass(frozen=True)
class Sphere(Projection):
    """The uniform law on the sphere of radius sqrt(D).

    Orthogonal directions are columns of a Haar-distributed orthogonal matrix, by QR: O(D^2)
    work per direction, so `balanced` is off by default.

    Example:
        >>> x = torch.zeros(3, 4, dtype=torch.float64)
        >>> v = Sphere().sample(x, num=2)
        >>> torch.allclose(v.square().sum(-1), torch.full((2, 3), 4.0, dtype=torch.float64))
        True
    """

    def _block(self, d: int) -> int:
        return d

    def _groups(
        self, like: Tensor, groups: int, size: int, d: int, generator: torch.Generator | None
    ) -> Tensor:
        return d**0.5 * _unit_directions(like, groups, size, d, generator)


@dataclass(frozen=True)
class Gaussian(Projection):
    """The standard normal law.

    Orthogonal directions are those of `Sphere`, each with an independent chi-distributed length,
    which makes every one of them exactly standard normal.

    Example:
        >>> x = torch.zeros(3, 4, dtype=torch.float64)
        >>> v = Gaussian(orthogonal=True).sample(x, num=2)
        >>> torch.allclose((v[0] * v[1]).sum(-1), torch.zeros(3, dtype=torch.float64))
        True
    """

    def _block(self, d: int) -> int:
        return d

    def _groups(
        self, like: Tensor, groups: int, size: int, d: int, generator: torch.Generator | None
    ) -> Tensor:
        if size == 1:
            return _normal(like, (groups, 1, d), generator)
        length = _normal(like, (groups, size, d), generator).norm(dim=-1, keepdim=True)
        return length * _unit_directions(like, groups, size, d, generator)


def _cut(v: Tensor, dim: int, length: int) -> Tensor:
    """The first entries along an axis: itself where there are no more, which costs nothing."""
    return v if v.shape[dim] == length else v.narrow(dim, 0, length)


def random_signs(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Independent signs, -1 or 1 with equal chance."""
    bits = torch.randint(0, 2, shape, generator=generator, dtype=like.dtype, device=like.device)
    return torch.rsub(bits, 1, alpha=2)  # 1 - 2 b


def _normal(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def _hadamard(rows: int, order: int, columns: Tensor, like: Tensor) -> Tensor:
    """The first rows of Sylvester's matrix of some order, at the given columns."""
    capturing = like.is_cuda and torch.cuda.is_current_stream_capturing()
    # What is made while a CUDA graph records belongs to the graph, and is not kept.
    make = _sylvester.__wrapped__ if capturing or rows * order > _KEPT else _sylvester
    return make(rows, order, like.dtype, like.device).index_select(1, columns)


@lru_cache(maxsize=8)
def _sylvester(rows: int, order: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Entries ``H[r, c] = (-1)^<bits(r), bits(c)>``, ``(rows, order)``."""
    with torch.inference_mode(False):
        places = torch.arange((order - 1).bit_length(), device=device)
        row_bits = (torch.arange(rows, device=device)[:, None] >> places & 1).to(dtype)
        column_bits = (torch.arange(order, device=device)[:, None] >> places & 1).to(dtype)
        return 1 - 2 * (row_bits @ column_bits.T).remainder(2)


_KEPT = 1 << 20
"""Entries of a matrix worth keeping from call to call."""


def _unit_directions(
    like: Tensor, groups: int, size: int, d: int, generator: torch.Generator | None
) -> Tensor:
    """Uniform directions of length one, ``(groups, size, D)``, orthogonal in blocks of D."""
    rows = min(size, d)
    blocks = -(-size // rows)
    z = _normal(like, (groups, blocks, d, rows), generator)
    if rows == 1:
        unit = z / z.norm(dim=-2, keepdim=True)
    else:
        q, r = torch.linalg.qr(z)
        # QR is unique, and its q Haar distributed, once the diagonal of r is positive.
        unit = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return unit.transpose(-2, -1).reshape(groups, -1, d)[:, :size]

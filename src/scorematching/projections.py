"""Distributions of random directions v, along which sliced score matching projects.

All have ``E[v v'] = I``, so that ``E[v' A v] = tr A`` and ``E[(v.s)^2] = |s|^2``; the sphere
therefore has radius sqrt(D). Directions that are drawn together can be made mutually orthogonal,
which lowers the variance of their average and leaves the distribution of each as it is:

===================  =====================================================  ===============
option               which directions are mutually orthogonal               groups x size
===================  =====================================================  ===============
(neither)            none                                                   N M x 1
``orthogonal=True``  the M directions of one point                          N x M
``balanced=True``    all directions of the batch                            1 x N M
both                 those of as many points as fit in one block            N/k x k M
===================  =====================================================  ===============

At most D directions (for signs: D rounded up to a power of two) fit in one orthogonal block. A
larger group consists of several blocks, independent of each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from scorematching._checks import check_count, check_flag, check_generator, check_points
from scorematching._directions import split
from scorematching._random import normal
from scorematching._shapes import dimension
from scorematching._tracing import is_recording

Shape = tuple[int, int, int]
"""Number of groups of directions, directions in each, and D."""


@dataclass(frozen=True)
class Projection(ABC):
    """A distribution of directions with ``E[v v'] = I``; a subclass writes `draw`.

    Args:
        orthogonal: make the M directions of one point mutually orthogonal.
        balanced: make the directions orthogonal across the whole batch, so that
            ``sum_i v_i v_i'`` is close to ``N I``. The distribution of each stays the same.

    Attributes:
        quadratic_only: whether the directions are meant only for losses that are quadratic in v,
            since their higher moments depend on M.

    Example:
        >>> projection: Projection = Gaussian(orthogonal=True)
        >>> projection.sample(torch.zeros(5, 3), num=2).shape
        torch.Size([2, 5, 3])
    """

    orthogonal: bool = False
    balanced: bool = False
    quadratic_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
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

    @abstractmethod
    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        """``sample`` without its checks, for callers that have already made them."""


@dataclass(frozen=True)
class Grouped(Projection):
    """Directions in independent groups, as in the table of this module."""

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        """``sample`` without its checks, for callers that have already made them."""
        n, d = x.shape[0], dimension(x)
        if self.balanced and self.orthogonal:
            size = num * min(n, max(1, self.block(d) // num))
        elif self.balanced:
            size = num * n
        else:
            size = num if self.orthogonal else 1
        # Half precision has neither QR nor exact small integers; directions are drawn above it.
        like = x if x.element_size() >= 4 else x.new_empty(0, dtype=torch.float32)
        v = self.draw_groups(like, (-(-n * num // size), size, d), generator).to(x.dtype)
        if num == 1:
            return _cut(v.reshape(-1, d), 0, n).reshape(1, *x.shape)
        return v.reshape(-1, num, d)[:n].transpose(0, 1).reshape(num, *x.shape)

    def block(self, d: int) -> int:
        """The most directions in D coordinates that can be mutually orthogonal."""
        return d

    @abstractmethod
    def draw_groups(self, like: Tensor, shape: Shape, generator: torch.Generator | None) -> Tensor:
        """Independent groups of directions, ``(groups, size, D)``, orthogonal in blocks."""


@dataclass(frozen=True)
class Rademacher(Grouped):
    """The uniform distribution on {-1, 1}^D: least variance of ``v' A v`` among independent v.

    Balanced directions are rows of a Hadamard matrix with random column signs. The signs alone
    make each row exactly uniform; D random columns of the K x K matrix (K = D rounded up to a
    power of two) make the average product of two rows ``-1/(K-1)``. A balanced batch therefore has
    at most ``1 + 1/(K-1)`` times the variance of an independent one, and far less where the
    Hessian varies little from point to point. Cost: one product of N x log2 K bits.

    With ``orthogonal=True`` the M directions of a point are rows of one such matrix: exactly
    orthogonal where D is a power of two, and otherwise as nearly as signs can be on average.
    Entries are never zero; the directions with zeros are those of `SplitRademacher`.

    Args:
        orthogonal: take the M directions of one point from one Hadamard matrix.
        balanced: make the directions orthogonal across the batch.

    Example:
        >>> x = torch.zeros(8, 4, dtype=torch.float64)
        >>> v = Rademacher().sample(x)[0]
        >>> torch.equal(v.T @ v, 8 * torch.eye(4, dtype=torch.float64))
        True
        >>> Rademacher().sample(x, num=3).abs().unique().tolist()
        [1.0]
    """

    balanced: bool = True

    def block(self, d: int) -> int:
        """D rounded up to a power of two, the size of a Hadamard matrix."""
        return 1 << (d - 1).bit_length()

    def draw_groups(self, like: Tensor, shape: Shape, generator: torch.Generator | None) -> Tensor:
        """Groups of rows of Hadamard matrices with random columns and column signs."""
        groups, size, d = shape
        order = self.block(d)
        rows = min(size, order)
        signs = random_signs(like, (groups, -(-size // rows), 1, d), generator)
        if rows > 1:
            # Sorting random keys, unlike randperm, can be captured in a CUDA graph.
            keys = torch.rand(order, generator=generator, device=like.device)
            signs = _hadamard(rows, order, keys.argsort()[:d], like) * signs
        return _cut(signs.reshape(groups, -1, d), 1, size)


@dataclass(frozen=True)
class SplitRademacher(Projection):
    """One sign vector per point, its coordinates split at random among the M directions.

    ``v_j = sqrt(M) w`` on the coordinates of direction j and zero elsewhere, with ``w`` drawn by
    `Rademacher`; the split is the same for all points. Each v_j still has ``E[v v'] = I``, and the
    mean of ``v_j' A v_j`` never has more variance than for independent signs: where M divides D
    it has ``(D - M) / (D - 1)`` times theirs, and none for M = D. A linear layer that reads the
    points takes all M directions at the price of one. For M = 1, and for M > D, where some
    direction would be left empty, the directions are those of `Rademacher(orthogonal=True)`.

    It is the default of `SlicedScoreMatching` and `SlicedScoreMatchingVR`, which depend on the
    directions through the mean of ``v_j v_j'`` alone. Objectives with higher powers of v refuse
    it, since those moments depend on M: ``E[v_a^4] = M``.

    Args:
        balanced: draw w balanced across the batch.

    Example:
        >>> v = SplitRademacher().sample(torch.zeros(8, 4), num=4)
        >>> v.square().sum(0)[0].tolist(), int((v != 0).sum())
        ([4.0, 4.0, 4.0, 4.0], 32)
    """

    orthogonal: bool = field(default=True, init=False, repr=False)
    balanced: bool = True
    quadratic_only: ClassVar[bool] = True

    def draw(self, x: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
        """``sample`` without its checks, for callers that have already made them."""
        if not 1 < num <= dimension(x):
            return self._signs.draw(x, num, generator)
        return split(self._signs.draw(x, 1, generator)[0], num, generator)

    @cached_property
    def _signs(self) -> Rademacher:
        return Rademacher(orthogonal=True, balanced=self.balanced)


@dataclass(frozen=True)
class Sphere(Grouped):
    """The uniform distribution on the sphere of radius sqrt(D).

    Orthogonal directions are columns of a Haar-distributed orthogonal matrix, by QR: O(D^2)
    work per direction, so `balanced` is off by default.

    Example:
        >>> x = torch.zeros(3, 4, dtype=torch.float64)
        >>> v = Sphere().sample(x, num=2)
        >>> torch.allclose(v.square().sum(-1), torch.full((2, 3), 4.0, dtype=torch.float64))
        True
    """

    def draw_groups(self, like: Tensor, shape: Shape, generator: torch.Generator | None) -> Tensor:
        """Groups of vectors of length sqrt(D)."""
        return shape[-1] ** 0.5 * _unit_vectors(like, shape, generator)


@dataclass(frozen=True)
class Gaussian(Grouped):
    """The standard normal distribution.

    Orthogonal directions are those of `Sphere`, each with an independent chi-distributed length,
    which makes every one of them exactly standard normal.

    Example:
        >>> x = torch.zeros(3, 4, dtype=torch.float64)
        >>> v = Gaussian(orthogonal=True).sample(x, num=2)
        >>> torch.allclose((v[0] * v[1]).sum(-1), torch.zeros(3, dtype=torch.float64))
        True
    """

    def draw_groups(self, like: Tensor, shape: Shape, generator: torch.Generator | None) -> Tensor:
        """Groups of standard normal vectors."""
        v = normal(shape, like, generator)
        if shape[1] == 1:
            return v
        return v.norm(dim=-1, keepdim=True) * _unit_vectors(like, shape, generator)


def _cut(v: Tensor, dim: int, length: int) -> Tensor:
    """The first entries along an axis; v itself, with no operation, where there are no more."""
    return v if v.shape[dim] == length else v.narrow(dim, 0, length)


def random_signs(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Independent signs, -1 or 1 with equal chance."""
    bits = torch.randint(0, 2, shape, generator=generator, dtype=like.dtype, device=like.device)
    return torch.rsub(bits, 1, alpha=2)  # 1 - 2 b


def _hadamard(rows: int, order: int, columns: Tensor, like: Tensor) -> Tensor:
    """The first rows of Sylvester's matrix of some order, at the given columns."""
    # Tensors made during tracing or capture belong to the graph and must not be cached.
    cached = rows * order <= _MAX_CACHED and not is_recording(like)
    make = _sylvester if cached else _sylvester.__wrapped__
    return make(rows, order, like.dtype, like.device).index_select(1, columns)


@lru_cache(maxsize=8)
def _sylvester(rows: int, order: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Entries ``H[r, c] = (-1)^<bits(r), bits(c)>``, ``(rows, order)``."""
    with torch.inference_mode(False):
        places = torch.arange((order - 1).bit_length(), device=device)
        row_bits = (torch.arange(rows, device=device)[:, None] >> places & 1).to(dtype)
        column_bits = (torch.arange(order, device=device)[:, None] >> places & 1).to(dtype)
        return 1 - 2 * (row_bits @ column_bits.T).remainder(2)


_MAX_CACHED = 1 << 20
"""Entries of the largest matrix that is cached."""


def _unit_vectors(like: Tensor, shape: Shape, generator: torch.Generator | None) -> Tensor:
    """Uniform vectors of length one, ``(groups, size, D)``, orthogonal in blocks of D."""
    groups, size, d = shape
    rows = min(size, d)
    blocks = -(-size // rows)
    z = normal((groups, blocks, d, rows), like, generator)
    if rows == 1:
        unit = z / z.norm(dim=-2, keepdim=True)
    else:
        q, r = torch.linalg.qr(z)
        # QR is unique, and its q Haar distributed, once the diagonal of r is positive.
        unit = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return unit.transpose(-2, -1).reshape(groups, -1, d)[:, :size]

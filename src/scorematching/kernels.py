"""Kernels ``k(x, y) = phi(|x - y|^2 / h^2)``, and the sums of their derivatives.

A kernel says its profile phi and the derivatives of that; everything else follows, once for all:

==========================  =====================================================================
``kernel(x, y)``            the matrix ``k(x_i, y_j)``
``grad_x``, ``grad_y``      its gradients in the first and in the second argument
``grad_sum(x, y, w)``       ``sum_j w_ij grad_x k(x_i, y_j)``, without an array of all gradients
``directed_sum(x, y, c)``   ``sum_j c_j . grad_y k(x_i, y_j)``
``mixed(x, y)``             the matrices of second derivatives, once in x and once in y
``mixed_sum(x, y, c)``      ``sum_j mixed_ij c_j``, without an array of all matrices
``laplacian(dim)``          the Laplacian in x, which is again a function of the distance
==========================  =====================================================================

Sets come batched: x is ``(*B, M, D)`` and y ``(*B, N, D)``, for B sets of points at once, each of
which may have a bandwidth of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values, check_count, check_positive

_CHUNK = 2**24
"""Entries of a matrix of distances that are held at one time."""


class Radial(ABC):
    """A function of the distance, ``phi(t)`` with ``t = |x - y|^2 / h^2``, and its derivatives."""

    bandwidth: float | Tensor

    @abstractmethod
    def profile(self, t: Tensor, order: int = 0) -> Tensor:
        """The derivative of phi of some order, at every entry of t."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The matrix ``phi_ij``: ``(*B, M, D), (*B, N, D) -> (*B, M, N)``."""
        return self._values(x, y, 0)

    def grad_x(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients in the first argument, ``2 phi' (x_i - y_j) / h^2``: ``(*B, M, N, D)``."""
        slope = 2 * self._values(x, y, 1) / self._area()
        return slope[..., None] * (x[..., :, None, :] - y[..., None, :, :])

    def grad_y(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients in the second argument: minus `grad_x`."""
        return -self.grad_x(x, y)

    def grad_sum(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """``sum_j w_ij grad_x phi(x_i, y_j)``; the gradient in y sums to minus that.

        Args:
            x: points ``(*B, M, D)``.
            y: points ``(*B, N, D)``.
            weights: w, ``(*B, M, N)``; None for ones.

        Returns:
            ``(*B, M, D)``. Memory: a matrix ``(*B, M, N)`` and no more.
        """
        slope = 2 * self._values(x, y, 1) / self._area()
        return _difference_sum(slope if weights is None else weights * slope, x, y)

    def directed_sum(self, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
        """``sum_j c_j . grad_y phi(x_i, y_j)``.

        Args:
            x: points ``(*B, M, D)``.
            y: points ``(*B, N, D)``.
            vectors: c, ``(*B, N, D)``.

        Returns:
            ``(*B, M)``. Memory: a matrix ``(*B, M, N)`` and no more.
        """
        slope = -2 * self._values(x, y, 1) / self._area()
        return (slope * _along(x, y, vectors)).sum(-1)

    def mixed(self, x: Tensor, y: Tensor) -> Tensor:
        """Second derivatives, once in x and once in y.

        ``-(4 phi'' d d' / h^4 + 2 phi' I / h^2)`` with ``d = x_i - y_j``.

        Args:
            x: points ``(*B, M, D)``.
            y: points ``(*B, N, D)``.

        Returns:
            ``(*B, M, D, N, D)``: flattened in pairs, the matrix of a system of M D equations.
        """
        slope, bend = self._second(x, y)
        d = x[..., :, None, :] - y[..., None, :, :]
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        blocks = bend[..., None, None] * (d[..., :, None] * d[..., None, :])
        return (blocks + slope[..., None, None] * eye).movedim(-2, -3)

    def mixed_sum(self, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
        """``sum_j mixed(x_i, y_j) c_j``, the product with that matrix without the matrix.

        Args:
            x: points ``(*B, M, D)``.
            y: points ``(*B, N, D)``.
            vectors: c, ``(*B, N, D)``.

        Returns:
            ``(*B, M, D)``. Memory: a matrix ``(*B, M, N)`` and no more.
        """
        slope, bend = self._second(x, y)
        return slope @ vectors + _difference_sum(bend * _along(x, y, vectors), x, y)

    def laplacian(self, dim: int) -> Radial:
        """The Laplacian in x (or y, it is the same) for points of ``dim`` coordinates."""
        return _Laplacian(self, dim)

    def _second(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What multiplies I and what multiplies d d' in `mixed`."""
        area = self._area()
        return -2 * self._values(x, y, 1) / area, -4 * self._values(x, y, 2) / area**2

    def _values(self, x: Tensor, y: Tensor, order: int) -> Tensor:
        return self.profile(squared_distances(x, y) / self._area(), order)

    def _area(self) -> Any:
        """``h^2``, with axes for the two sets where there is one for each pair of sets."""
        h = self.bandwidth
        return h[..., None, None] ** 2 if isinstance(h, Tensor) else h**2


@dataclass(frozen=True, eq=False)
class Kernel(Radial):
    """A positive definite function of the distance with ``k(x, x) = 1``.

    Args:
        bandwidth: h, a number, or one per set of points, ``(*B)``. Near zero distance all kernels
            here are ``1 - |x - y|^2 / (2 h^2)``, so bandwidths of one mean the same for another.

    Raises:
        TypeError: if the bandwidth is not a number.
        ValueError: if it is not positive.

    Example:
        >>> kernel: Kernel = RBF(bandwidth=2.0)
        >>> kernel(torch.zeros(1, 3), torch.zeros(1, 3)).item()
        1.0
    """

    bandwidth: float | Tensor

    def __post_init__(self) -> None:
        """Check the bandwidth."""
        advice = "None takes the median distance between samples"
        if not isinstance(self.bandwidth, Tensor):
            check_positive(self.bandwidth, "bandwidth", advice)
        elif can_read_values(self.bandwidth) and not bool((self.bandwidth > 0).all()):
            least = self.bandwidth.min().item()
            raise ValueError(f"bandwidth must be positive, got {least!r} in one set; {advice}")

    @property
    def curvature(self) -> Any:
        """``1 / h^2``: minus the second derivative at zero distance, the largest there is."""
        return 1 / self.bandwidth**2


@dataclass(frozen=True, eq=False)
class RBF(Kernel):
    """The Gaussian kernel, ``exp(-|x - y|^2 / (2 h^2))``.

    Args:
        bandwidth: h, a number, or one per set of points, ``(*B)``.

    Example:
        >>> kernel, x, y = RBF(bandwidth=2.0), torch.zeros(1, 1), torch.ones(1, 1)
        >>> torch.allclose(kernel.grad_x(x, y)[..., 0], kernel(x, y) / 4)
        True
    """

    def profile(self, t: Tensor, order: int = 0) -> Tensor:
        """``(-1/2)^n exp(-t / 2)``."""
        return (-0.5) ** order * torch.exp(-t / 2)


@dataclass(frozen=True, eq=False)
class IMQ(Kernel):
    """The inverse multiquadric kernel, ``(1 + |x - y|^2 / h^2)^(-1/2)``: heavy tails.

    Args:
        bandwidth: h, a number, or one per set of points, ``(*B)``.

    Example:
        >>> IMQ(bandwidth=1.0)(torch.zeros(1, 1), torch.full((1, 1), 3.0**0.5)).item()
        0.5
    """

    def profile(self, t: Tensor, order: int = 0) -> Tensor:
        """``(-1/2) (-3/2) ... (1 + t)^(-1/2 - n)``, with n factors."""
        factor = 1.0
        for n in range(order):
            factor *= -0.5 - n
        return factor * (1 + t) ** (-0.5 - order)


@dataclass(frozen=True, eq=False)
class _Laplacian(Radial):
    """``(4 t phi'' + 2 D phi') / h^2``, whose n-th derivative in t is as simple."""

    radial: Radial
    dim: int

    @property
    def bandwidth(self) -> float | Tensor:  # type: ignore[override]
        return self.radial.bandwidth

    def profile(self, t: Tensor, order: int = 0) -> Tensor:
        first, second = (self.radial.profile(t, order + n) for n in (1, 2))
        return (4 * t * second + (4 * order + 2 * self.dim) * first) / self._area()


KERNELS: dict[str, Callable[[Any], Kernel]] = {"rbf": RBF, "imq": IMQ}
"""Kernels by name."""


def kernel_for(
    samples: Tensor,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    include_diagonal: bool = False,
) -> Kernel:
    """A kernel for sets of samples, by name.

    Args:
        samples: ``(*B, M, D)``.
        kernel: "rbf" or "imq".
        bandwidth: h, a number, or one per set, ``(*B)``; None takes `median_bandwidth` of each.
        include_diagonal: passed on to `median_bandwidth`.

    Returns:
        The kernel.

    Raises:
        TypeError: if the bandwidth is not a number.
        ValueError: if the name is unknown, the bandwidth not positive, or of another shape.

    Example:
        >>> kernel_for(torch.tensor([[0.0], [1.0], [4.0]])).bandwidth.item()
        3.0
    """
    if kernel not in KERNELS:
        names = " or ".join(f'"{name}"' for name in KERNELS)
        raise ValueError(f'kernel must be {names}, got {kernel!r}; "rbf" suits most data')
    if bandwidth is None:
        bandwidth = median_bandwidth(samples, include_diagonal)
    if isinstance(bandwidth, Tensor) and bandwidth.shape not in ((), samples.shape[:-2]):
        raise ValueError(
            "bandwidth must be a number, or one for each set, shape "
            f"{tuple(samples.shape[:-2])}, got {tuple(bandwidth.shape)}; None takes the median "
            "distance within each set"
        )
    return KERNELS[kernel](bandwidth)


def median_bandwidth(
    samples: Tensor, include_diagonal: bool = False, max_points: int = 2000
) -> Tensor:
    """The median distance between the samples of each set, ``(*B, M, D) -> (*B)``.

    Of an even number of distances it is the smaller middle one. It carries no gradient. Of sets
    of more than ``max_points`` samples an evenly spaced part is looked at.

    Args:
        samples: ``(*B, M, D)`` with M >= 2.
        include_diagonal: take all M^2 distances, those of the samples to themselves too, and of
            these the (M^2 / 2)-th largest: smaller for few samples. The code released with the
            paper does so.
        max_points: samples per set that are compared.

    Returns:
        One bandwidth per set.

    Raises:
        ValueError: if a median is zero.

    Example:
        >>> median_bandwidth(torch.tensor([[0.0], [1.0], [4.0]])).item()  # of 1, 3 and 4
        3.0
    """
    check_count(max_points, "max_points", "2000 samples pin a median down well")
    x = samples.detach()[..., :: -(-samples.shape[-2] // max_points), :]
    num = x.shape[-2]
    distances = squared_distances(x, x).clamp(min=0)
    if include_diagonal:
        distances.diagonal(dim1=-2, dim2=-1).zero_()
        flat = distances.flatten(-2)
        median = flat.kthvalue(num**2 - num**2 // 2 + 1, dim=-1).values.sqrt()
    else:
        above = torch.triu_indices(num, num, offset=1, device=x.device)
        median = distances[..., above[0], above[1]].median(dim=-1).values.sqrt()
    _check_median(median)
    return median


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """``|x_i - y_j|^2``: ``(*B, M, D), (*B, N, D) -> (*B, M, N)``, by one matrix product.

    Centred and in double precision, so that ``|x|^2 + |y|^2 - 2 x.y`` does not cancel: points a
    thousand bandwidths apart keep ten digits. Rounding may leave -1e-16 for 0.

    Raises:
        ValueError: if points of the two sets have different numbers of coordinates.

    Example:
        >>> squared_distances(torch.tensor([[1e4]]), torch.tensor([[1e4], [1e4 + 2]])).tolist()
        [[0.0, 4.0]]
    """
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"x must have the coordinates that y has, {y.shape[-1]} of them, got {x.shape[-1]}; "
            "evaluate a score at points of the dimension of its samples"
        )
    wide = x.dtype if x.device.type == "mps" else torch.float64  # which that device has not
    x_wide, y_wide = x.to(wide), y.to(wide)
    centre = _centre(y_wide)
    a, b = x_wide - centre, y_wide - centre
    squares = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
    return (squares - 2 * (a @ b.mT)).to(x.dtype)


def in_chunks(
    function: Callable[[Tensor], Tensor], x: Tensor, columns: int, chunk_size: int | None = None
) -> Tensor:
    """A function of points, a part of them at a time, where each meets ``columns`` others.

    Args:
        function: ``(*B, n, D) -> (*B, n, ...)`` for any n.
        x: points ``(*B, N, D)``.
        columns: length of the other side of the matrix that the function makes.
        chunk_size: n; None bounds the entries of that matrix.

    Returns:
        ``(*B, N, ...)``.

    Example:
        >>> x = torch.randn(5, 2)
        >>> torch.equal(in_chunks(torch.square, x, columns=3, chunk_size=2), x.square())
        True
    """
    axis = x.ndim - 2
    if chunk_size is None:
        chunk_size = max(1, _CHUNK // max(1, columns * x.shape[:-2].numel()))
    check_count(chunk_size, "chunk_size", "None bounds the memory by itself")
    if x.shape[axis] <= chunk_size:
        return function(x)
    return torch.cat([function(part) for part in x.split(chunk_size, dim=axis)], dim=axis)


def check_samples(samples: Any) -> None:
    """Require sets of two or more finite samples, ``(*B, M, D)``."""
    if not isinstance(samples, Tensor) or not samples.is_floating_point():
        kind = samples.dtype if isinstance(samples, Tensor) else type(samples).__name__
        raise TypeError(
            f"samples must be a floating-point torch.Tensor, got {kind}; "
            "convert them with torch.as_tensor(samples, dtype=torch.float64)"
        )
    if samples.ndim < 2 or samples.shape[-2] < 2 or samples.numel() == 0:
        raise ValueError(
            f"samples must have shape (*B, M, D) with M >= 2, got {tuple(samples.shape)}; a score "
            "is estimated from several samples, the more the better"
        )
    _check_finite(samples, "samples")


def check_queries(x: Any, samples: Tensor, name: str = "queries") -> None:
    """Require finite points ``(*B, N, D)`` that go with sets of samples."""
    if not isinstance(x, Tensor) or x.dtype != samples.dtype or x.device != samples.device:
        kind = f"{x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"{name} must be a tensor like samples, {samples.dtype} on {samples.device}, got "
            f"{kind}; convert them with {name}.to(samples)"
        )
    sets, dim = tuple(samples.shape[:-2]), samples.shape[-1]
    if x.ndim != samples.ndim or x.shape[:-2] != samples.shape[:-2] or x.shape[-1] != dim:
        wanted = ", ".join(map(str, (*sets, "N", dim)))
        raise ValueError(
            f"{name} must have shape ({wanted}) to go with samples of shape "
            f"{tuple(samples.shape)}, got {tuple(x.shape)}; expand them to the sets, and give "
            "points the coordinates that the samples have"
        )
    _check_finite(x, name)


def _check_finite(x: Tensor, name: str) -> None:
    if can_read_values(x) and not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).any(-1).sum())
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {bad} points; drop them, or look for "
            "what diverged"
        )


def _centre(y: Tensor) -> Tensor:
    """An origin near the points, so that differences of large numbers are not taken."""
    return y.detach().mean(-2, keepdim=True)


def _difference_sum(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``sum_j w_ij (x_i - y_j)``, by one matrix product."""
    centre = _centre(y)
    return weights.sum(-1, keepdim=True) * (x - centre) - weights @ (y - centre)


def _along(x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
    """``(x_i - y_j) . c_j``, by one matrix product."""
    centre = _centre(y)
    return (x - centre) @ vectors.mT - ((y - centre) * vectors).sum(-1)[..., None, :]


def _check_median(median: Tensor) -> None:
    if can_read_values(median) and not bool((median > 0).all()):
        raise ValueError(
            "samples must differ for a median bandwidth, got a set in which at least half of the "
            "distances are zero; drop repeated samples, or pass bandwidth="
        )

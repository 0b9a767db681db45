"""Kernels ``k(x, y) = phi(|x - y|^2 / h^2)``, and the sums of their derivatives.

A subclass defines phi and its derivatives (`profile`); all matrices and sums follow from these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values, check_positive
from scorematching.kernels.distances import difference_products, difference_sum, squared_distances


class Radial(ABC):
    """A function of the distance, ``phi(t)`` with ``t = |x - y|^2 / h^2``.

    In all methods x is ``(*B, M, D)`` and y ``(*B, N, D)``: B pairs of sets of points. Sums use
    memory for one matrix ``(*B, M, N)``.
    """

    bandwidth: float | Tensor

    @abstractmethod
    def profile(self, t: Tensor, order: int = 0) -> Tensor:
        """The derivative of phi of the given order, at every entry of t."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The matrix ``phi_ij``, ``(*B, M, N)``."""
        return self._values(x, y, 0)

    def grad_x(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients in the first argument, ``2 phi' (x_i - y_j) / h^2``: ``(*B, M, N, D)``."""
        return self._slopes(x, y)[..., None] * (x[..., :, None, :] - y[..., None, :, :])

    def grad_y(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients in the second argument: minus `grad_x`."""
        return -self.grad_x(x, y)

    def grad_sum(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """``sum_j w_ij grad_x phi(x_i, y_j)``, ``(*B, M, D)``.

        Weights are ``(*B, M, N)``; None stands for ones.
        """
        slopes = self._slopes(x, y)
        return difference_sum(slopes if weights is None else weights * slopes, x, y)

    def directed_sum(self, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
        """``sum_j c_j . grad_y phi(x_i, y_j)``, ``(*B, M)``, for vectors c of the shape of y."""
        return -(self._slopes(x, y) * difference_products(x, y, vectors)).sum(-1)

    def mixed(self, x: Tensor, y: Tensor) -> Tensor:
        """Second derivatives, once in x and once in y, ``(*B, M, D, N, D)``.

        ``-(4 phi'' d d' / h^4 + 2 phi' I / h^2)`` with ``d = x_i - y_j``.
        """
        of_identity, of_products = self._mixed_factors(x, y)
        d = x[..., :, None, :] - y[..., None, :, :]
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        blocks = of_products[..., None, None] * (d[..., :, None] * d[..., None, :])
        return (blocks + of_identity[..., None, None] * eye).movedim(-2, -3)

    def mixed_sum(self, x: Tensor, y: Tensor, vectors: Tensor) -> Tensor:
        """``sum_j mixed(x_i, y_j) c_j``, ``(*B, M, D)``, for vectors c of the shape of y."""
        of_identity, of_products = self._mixed_factors(x, y)
        along = difference_products(x, y, vectors)
        return of_identity @ vectors + difference_sum(of_products * along, x, y)

    def laplacian(self, dim: int) -> Radial:
        """The Laplacian in x (and equally in y) for points of ``dim`` coordinates."""
        return _Laplacian(self, dim)

    def _slopes(self, x: Tensor, y: Tensor) -> Tensor:
        """The factor of ``x_i - y_j`` in `grad_x`."""
        return 2 * self._values(x, y, 1) / self._squared_bandwidth()

    def _mixed_factors(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of I and of d d' in `mixed`."""
        return -self._slopes(x, y), -4 * self._values(x, y, 2) / self._squared_bandwidth() ** 2

    def _values(self, x: Tensor, y: Tensor, order: int) -> Tensor:
        squares = squared_distances(x, y)
        _check_sets(self.bandwidth, squares.shape[:-2])
        return self.profile(squares / self._squared_bandwidth(), order)

    def _squared_bandwidth(self) -> Any:
        """``h^2``; one bandwidth per set gets two more axes, ``(*B, 1, 1)``."""
        h = self.bandwidth
        return h[..., None, None] ** 2 if isinstance(h, Tensor) else h**2


@dataclass(frozen=True, eq=False)
class Kernel(Radial):
    """A positive definite function of the distance with ``k(x, x) = 1``.

    Args:
        bandwidth: h, a number, or one per set of points, ``(*B)``. Near zero distance all kernels
            here are ``1 - |x - y|^2 / (2 h^2)``, so their bandwidths can be compared.

    Example:
        >>> kernel: Kernel = RBF(bandwidth=2.0)
        >>> kernel(torch.zeros(1, 3), torch.zeros(1, 3)).item()
        1.0
    """

    bandwidth: float | Tensor

    def __post_init__(self) -> None:
        advice = "None takes the median distance between samples"
        if not isinstance(self.bandwidth, Tensor):
            check_positive(self.bandwidth, "bandwidth", advice)
            # Powers of whole numbers, as of numpy, overflow without an error.
            object.__setattr__(self, "bandwidth", float(self.bandwidth))
        elif can_read_values(self.bandwidth) and not bool((self.bandwidth > 0).all()):
            least = self.bandwidth.min().item()
            raise ValueError(f"bandwidth must be positive, got {least!r} in one set; {advice}")
        if not isinstance(self.bandwidth, Tensor) or can_read_values(self.bandwidth):
            check_range(self.bandwidth, power=2)

    @property
    def curvature(self) -> Any:
        """``1 / h^2``, minus the second derivative at zero distance: the largest in size."""
        return 1 / self.bandwidth**2


def _check_sets(bandwidth: float | Tensor, sets: torch.Size) -> None:
    """Require one bandwidth, or one for each set of points."""
    if isinstance(bandwidth, Tensor) and bandwidth.shape not in ((), sets):
        raise ValueError(
            f"bandwidth must be a number, or one for each set of points, shape {tuple(sets)}, got "
            f"{tuple(bandwidth.shape)}; a kernel has one bandwidth for all coordinates"
        )


def check_range(bandwidth: float | Tensor, power: int) -> None:
    """Require bandwidths of which a power, as in derivatives, lies within double precision."""
    least, most = 10.0 ** (-300 // power), 10.0 ** (300 // power)
    ends = bandwidth.detach().aminmax() if isinstance(bandwidth, Tensor) else (bandwidth,)
    for h in map(float, ends):
        if not least < h < most:
            raise ValueError(
                f"bandwidth must lie between {least:g} and {most:g}, got {h:g}, whose powers are "
                "zero or infinite; divide the samples by their standard deviation"
            )


@dataclass(frozen=True, eq=False)
class RBF(Kernel):
    """The Gaussian kernel, ``exp(-|x - y|^2 / (2 h^2))``.

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

    Example:
        >>> value = IMQ(bandwidth=1.0)(torch.zeros(1, 1), torch.full((1, 1), 3.0**0.5))
        >>> torch.allclose(value, torch.tensor(0.5))
        True
    """

    def profile(self, t: Tensor, order: int = 0) -> Tensor:
        """``(-1/2) (-3/2) ... (1 + t)^(-1/2 - n)``, with n factors."""
        factor = 1.0
        for n in range(order):
            factor *= -0.5 - n
        return factor * (1 + t) ** (-0.5 - order)


@dataclass(frozen=True, eq=False)
class _Laplacian(Radial):
    """``(4 t phi'' + 2 D phi') / h^2``, again a function of t."""

    radial: Radial
    dim: int

    @property
    def bandwidth(self) -> float | Tensor:  # type: ignore[override]
        return self.radial.bandwidth

    def profile(self, t: Tensor, order: int = 0) -> Tensor:
        first, second = (self.radial.profile(t, order + n) for n in (1, 2))
        return (4 * t * second + (4 * order + 2 * self.dim) * first) / self._squared_bandwidth()

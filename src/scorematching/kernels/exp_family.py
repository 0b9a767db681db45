"""Kernel exponential families: log-densities in the space of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values, check_positive
from scorematching._memory import Budget
from scorematching.kernels.bandwidth import kernel_for
from scorematching.kernels.base import KernelScore
from scorematching.kernels.distances import in_chunks, widened
from scorematching.kernels.radial import Kernel, check_range


@dataclass(frozen=True, eq=False, repr=False)
class KernelExpFamily(KernelScore):
    """A log-density ``log q0 + f`` with f in the space of a kernel, fitted by score matching.

    f minimises ``score-matching loss + lam / (2 h^2) |f|^2``. With derivatives of the kernel at
    a sample as elements of its space, ``<k_ai, f> = df/dx_i (x_a)``, the loss is

        0.5 <f, C f> + <f, xi>       C  = 1/M sum_ai k_ai (x) k_ai
                                     xi = 1/M sum_ai (d_i^2 k(x_a, .) + d_i log q0(x_a) k_ai)

    and every solution or iterate has the form ``f = -a xi + sum_bj c_bj k_bj``. The score is
    ``grad log q0(x) - a grad xi(x) + sum_b (second derivatives of k at x_b, x) c_b``. Cost:
    (M + m) D per point.

    Attributes:
        base: log q0.
        scale: a, ``(*B)``.
        points: x_b, ``(*B, m, D)``: all samples, or a subset.
        coefficients: c, ``(*B, m, D)``.

    Example:
        >>> from scorematching.kernels import fit_kernel_exp_family
        >>> fitted = fit_kernel_exp_family(torch.randn(50, 2))
        >>> fitted.log_density(torch.zeros(3, 2)).shape, fitted.score(torch.zeros(3, 2)).shape
        (torch.Size([3]), torch.Size([3, 2]))
    """

    base: Base
    scale: Tensor
    points: Tensor
    coefficients: Tensor

    def at_samples(self) -> Tensor:
        """The score at the samples themselves, ``(*B, M, D)``."""
        return self.score(self.samples)

    def log_density(self, x: Tensor, chunk_size: int | None = None) -> Tensor:
        """The log-density at points, up to a constant for each set: ``(*B, N, D) -> (*B, N)``."""
        return self._in_chunks(self._log_density, x, chunk_size)

    @property
    def _fitted(self) -> Tensor:
        return self.coefficients

    def _score(self, x: Tensor) -> Tensor:
        xi = Drift(self._wide, self.kernel, self.base)
        sums = self.kernel.mixed_sum(x, self.points, self.coefficients)
        return self.base.score(x) - self.scale[..., None, None] * xi.gradient(x) + sums

    def _log_density(self, x: Tensor) -> Tensor:
        xi = Drift(self._wide, self.kernel, self.base)
        sums = self.kernel.directed_sum(x, self.points, self.coefficients)
        return self.base.log_density(x) - self.scale[..., None] * xi(x) + sums


@dataclass(frozen=True, eq=False)
class Base:
    """log q0: a normal distribution with a diagonal covariance, or none, up to a constant.

    Attributes:
        mean: ``(*B, 1, D)``.
        precision: ``(*B, 1, D)``; zeros for no base.
    """

    mean: Tensor
    precision: Tensor

    def score(self, x: Tensor) -> Tensor:
        """``(*B, N, D) -> (*B, N, D)``."""
        return self.precision * (self.mean - x)

    def log_density(self, x: Tensor) -> Tensor:
        """``(*B, N, D) -> (*B, N)``."""
        return -0.5 * (self.precision * (self.mean - x).square()).sum(-1)


@dataclass(eq=False)
class Drift:
    """The function xi of `KernelExpFamily`: its values, gradients and squared norm."""

    samples: Tensor
    kernel: Kernel
    base: Base
    budget: Budget | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """``xi(x)``: ``(*B, N, D) -> (*B, N)``."""
        second = self.laplacian(x, self.samples).sum(-1)
        first = self.kernel.directed_sum(x, self.samples, self.base_scores)
        return (second + first) / self.num

    def gradient(self, x: Tensor) -> Tensor:
        """``grad xi(x)``: ``(*B, N, D) -> (*B, N, D)``."""
        second = self.laplacian.grad_sum(x, self.samples)
        first = self.kernel.mixed_sum(x, self.samples, self.base_scores)
        return (second + first) / self.num

    def gradients(self, x: Tensor) -> Tensor:
        """`gradient` of many points, some at a time."""
        return in_chunks(self.gradient, x, self.num, budget=self.budget)

    def norm_square(self) -> Tensor:
        """``<xi, xi> = mean_a (laplacian xi(x_a) + grad log q0(x_a) . grad xi(x_a))``, ``(*B)``."""
        x, scores, twice = self.samples, self.base_scores, self.laplacian.laplacian

        def laplacian_of_xi(x: Tensor) -> Tensor:
            second = twice(x.shape[-1])(x, self.samples).sum(-1)
            return (second + self.laplacian.directed_sum(x, self.samples, scores)) / self.num

        values = in_chunks(laplacian_of_xi, x, self.num, budget=self.budget)
        along = (scores * self.gradients(x)).sum(-1)
        return (values + along).mean(-1)

    def __post_init__(self) -> None:
        self.num, dim = self.samples.shape[-2:]
        self.laplacian = self.kernel.laplacian(dim)
        self.base_scores = self.base.score(self.samples)


def prepare(
    samples: Tensor,
    kernel: str,
    bandwidth: float | Tensor | None,
    base_scale: float | None,
    include_diagonal: bool,
    budget: Budget | None,
) -> tuple[Kernel, Drift]:
    """The kernel and the function xi for checked samples, in double precision."""
    samples = widened(samples)
    k = kernel_for(samples, kernel, bandwidth, include_diagonal, budget)
    if can_read_values(samples):
        check_range(k.bandwidth, power=4)  # which is that of second derivatives
    mean = samples.mean(-2, keepdim=True)
    precision = torch.zeros_like(mean)
    if base_scale is not None:
        check_positive(base_scale, "base_scale", "2.0 is a wide base, None is none")
        variance = samples.var(-2, keepdim=True)
        # A constant coordinate has no base: its score is zero.
        precision = torch.where(variance > 0, 1 / (base_scale**2 * variance), 0.0)
    return k, Drift(samples, k, Base(mean, precision), budget)


def per_set(value: Any, samples: Tensor) -> Tensor:
    """A number, or one per set, as a tensor ``(*B)``."""
    tensor = torch.as_tensor(value, dtype=samples.dtype, device=samples.device)
    return tensor.expand(samples.shape[:-2])

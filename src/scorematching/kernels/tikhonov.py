"""Kernel exponential families by linear equations: in full, or on inducing points."""

from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_positive
from scorematching._memory import Chunks, limited, sum_of_chunks
from scorematching._precision import at_least_single, without_autocast
from scorematching.kernels.base import (
    add_ridge,
    check_queries,
    checked_samples,
    require_finite,
)
from scorematching.kernels.distances import in_chunks, widened
from scorematching.kernels.exp_family import Drift, KernelExpFamily, per_set, prepare
from scorematching.kernels.memory import check_memory


def fit_kernel_exp_family(
    samples: Tensor,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    lam: float = 1e-2,
    base_scale: float | None = 2.0,
    inducing: Tensor | None = None,
    include_diagonal: bool = False,
    max_memory: int | None = None,
) -> KernelExpFamily:
    """A kernel exponential family for one or many sets of samples; see `KernelExpFamily`.

    Without ``inducing`` the minimum over all functions of the kernel's space, a system of M D
    equations: with G the second derivatives of the kernel at all pairs of samples,
    ``c = (G + M lam' I)^-1 grad xi / lam'``, ``a = 1 / lam'`` and ``lam' = lam / h^2``. With m
    inducing points the minimum over the functions ``-a xi + sum_bj c_bj k_bj`` where b runs over
    these only, a system of m D + 1. With the samples as inducing points both are the same.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        kernel: "rbf" or "imq".
        bandwidth: h, a number, or one per set, ``(*B)``; None is the median distance of each set.
        lam: strength of the penalty on f, in units that do not depend on those of the data.
        base_scale: q0 is normal with the mean of the samples and this multiple of their standard
            deviations; None is no q0, and a score that falls to zero far from the data.
        inducing: points ``(*B, m, D)`` for the Nystrom method, usually some of the samples.
        include_diagonal: count zero distances in the median, as the paper's code does.
        max_memory: bytes that the fit may take beside the samples, its result included, which is
            measured; None is without limit.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, or if a
            number is out of range, or the system does not fit into the memory.

    Reference: Sriperumbudur et al. (2017), Density estimation in infinite dimensional exponential
    families, Theorem 5; Sutherland et al. (2018), Efficient and principled score estimation with
    Nystrom kernel exponential families.

    Example:
        >>> x = torch.randn(20, 2, dtype=torch.float64)
        >>> full, some = fit_kernel_exp_family(x), fit_kernel_exp_family(x, inducing=x)
        >>> torch.allclose(full.score(x), some.score(x), rtol=1e-4)
        True
    """
    check_positive(lam, "lam", "1e-2 is a good start")
    advice = "give inducing samples (num_inducing), or fewer of them, or use fit_nu_method"
    samples = checked_samples(samples)
    with limited(max_memory, advice) as budget, without_autocast(samples):
        k, xi = prepare(samples, kernel, bandwidth, base_scale, include_diagonal, budget)
        x, strength = xi.samples, lam * per_set(k.curvature, xi.samples)
        if inducing is None:
            check_memory(x, 2 * x.shape[-1] ** 2, advice, budget)
            return KernelExpFamily(samples, k, xi.base, 1 / strength, x, _tikhonov(xi, strength))
        _check_inducing(inducing, samples)
        z = widened(inducing)
        check_memory(z, 6 * x.shape[-1] ** 2, advice, budget)
        a, c = _nystrom(xi, z, strength)
        return KernelExpFamily(samples, k, xi.base, a, z, c)


def _check_inducing(inducing: Any, samples: Tensor) -> None:
    check_queries(at_least_single(inducing), samples, "inducing")
    require_finite(inducing, "inducing")
    if inducing.shape[-2] == 0:
        raise ValueError("inducing must hold at least one point, got none; None takes all")


def _tikhonov(xi: Drift, lam: Tensor) -> Tensor:
    """``c = (G + M lam I)^-1 grad xi / lam`` at the samples."""
    x = xi.samples
    slopes = xi.gradients(x).flatten(-2)[..., None]
    matrix = add_ridge(_mixed(xi, x), (x.shape[-2] * lam)[..., None])
    factor, _ = torch.linalg.cholesky_ex(matrix)
    del matrix
    return torch.cholesky_solve(slopes, factor).reshape(x.shape) / lam[..., None, None]


def _mixed(xi: Drift, z: Tensor) -> Tensor:
    """Second derivatives of the kernel at all pairs of points, ``(*B, m D, m D)``."""
    columns = z.shape[-2] * z.shape[-1] ** 2
    rows = in_chunks(lambda x: xi.kernel.mixed(x, z).flatten(-2), z, columns, budget=xi.budget)
    return rows.flatten(-3, -2)


def _nystrom(xi: Drift, z: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """The a and c of least loss: ``-(F'F / M + lam Gamma)^-1 <., xi>`` for the basis (xi, k_bj).

    F holds the gradients of the basis at the samples, Gamma its inner products. All functions are
    scaled to norm one, so that none is lost in rounding errors of the others whatever the units,
    and then made orthonormal, which keeps the system as well conditioned as the problem.
    """
    unit = 1 / xi.norm_square().sqrt()  # scales xi to norm one
    h = per_set(xi.kernel.bandwidth, xi.samples)  # scales k_bj, of norm 1 / h
    gamma = _inner_products(xi, z, unit, h)
    basis = _inverse_root(gamma)
    system = _squares(xi, z, unit, h, basis) / xi.samples.shape[-2]
    factor, _ = torch.linalg.cholesky_ex(add_ridge(system, lam[..., None]))
    along = basis.mT @ gamma[..., :1] / unit[..., None, None]
    w = -(basis @ torch.cholesky_solve(along, factor))[..., 0]
    return -w[..., 0] * unit, (h[..., None] * w[..., 1:]).reshape(z.shape)


def _inner_products(xi: Drift, z: Tensor, unit: Tensor, h: Tensor) -> Tensor:
    """Those of the basis: ``<xi, k_bj>`` is a derivative of xi, ``<k_bj, k_ci>`` one of k."""
    border = (unit * h)[..., None] * xi.gradient(z).flatten(-2)
    corner = torch.ones_like(border[..., :1])
    top = torch.cat([corner, border], -1)[..., None, :]
    block = h[..., None, None] ** 2 * _mixed(xi, z)
    return torch.cat([top, torch.cat([border[..., None], block], -1)], -2)


def _inverse_root(gamma: Tensor) -> Tensor:
    """T with ``T' gamma T = I`` on the range of gamma, and zero columns for the rest."""
    values, vectors = torch.linalg.eigh(gamma)
    keep = values > values[..., -1:] * values.shape[-1] * torch.finfo(values.dtype).eps
    return vectors * torch.where(keep, values, 1.0).rsqrt().mul(keep)[..., None, :]


def _squares(xi: Drift, z: Tensor, unit: Tensor, h: Tensor, basis: Tensor) -> Tensor:
    """``T'F'F T``, summed over chunks of the samples."""
    size = max(1, 2**24 // (xi.samples.shape[-1] * basis[..., 0].numel()))

    def square(rows: Tensor) -> Tensor:
        x = rows.movedim(0, -2)
        first = unit[..., None, None] * xi.gradient(x).flatten(-2)[..., None]
        rest = h[..., None, None] * xi.kernel.mixed(x, z).flatten(-2).flatten(-3, -2)
        part = torch.cat([first, rest], -1) @ basis
        return part.mT @ part

    return sum_of_chunks(Chunks(size, xi.budget), square, xi.samples.movedim(-2, 0))

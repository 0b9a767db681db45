"""Kernel exponential families by linear equations: in full, or on inducing points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_positive
from scorematching.estimators.base import LogDensityMixin, ScoreEstimator
from scorematching.estimators.kernel_space import Drift, KernelExpFamily, per_set, prepare
from scorematching.estimators.nu_method import fit_nu_method
from scorematching.fields import VectorField
from scorematching.kernels import check_queries, in_chunks

_MOST_EQUATIONS, _INDUCED_EQUATIONS = 2000, 1000
"""N D up to which "auto" solves the full system, and m D where it takes a subset: each is a matter
of a second."""


def fit_kernel_exp_family(
    samples: Tensor,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    lam: float = 1e-2,
    base_scale: float | None = 2.0,
    inducing: Tensor | None = None,
    include_diagonal: bool = False,
) -> KernelExpFamily:
    """A kernel exponential family for one or many sets of samples; see `KernelExpFamily`.

    Without ``inducing`` the minimum over all functions of the kernel's space, a system of M D
    equations: with G the second derivatives of the kernel at all pairs of samples,
    ``c = (G + M lam' I)^-1 grad xi / lam'``, ``a = 1 / lam'`` and ``lam' = lam / h^2``. With m
    inducing points the minimum over the functions ``-a xi + sum_bj c_bj k_bj`` where b runs over
    these only, a system of m D + 1. The samples as inducing points are the full solution again.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        kernel: "rbf" or "imq".
        bandwidth: h, a number, or one per set, ``(*B)``; None is the median distance of each set.
        lam: strength of the penalty on f, in units that do not depend on those of the data.
        base_scale: q0 is a normal law with the mean of the samples and so many times their
            standard deviations; None is no q0, and a score that falls to zero far from the data.
        inducing: points ``(*B, m, D)`` for the Nystrom method, usually some of the samples.
        include_diagonal: let zero distances count in the median.

    Returns:
        The fitted log-density.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, or if a
            number is out of range.

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
    k, xi = prepare(samples, kernel, bandwidth, base_scale, include_diagonal)
    strength = lam * per_set(k.curvature, samples)
    if inducing is None:
        c = _tikhonov(xi, strength)
        return KernelExpFamily(samples, k, xi.base, 1 / strength, samples, c)
    check_queries(inducing, samples, "inducing")
    a, c = _nystrom(xi, inducing, strength)
    return KernelExpFamily(samples, k, xi.base, a, inducing, c)


def kernel_exp_family_score(
    samples: Tensor,
    queries: Tensor | None = None,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    lam: float = 1e-2,
    base_scale: float | None = 2.0,
    inducing: Tensor | None = None,
    include_diagonal: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """The score of the law of samples, as that of a kernel exponential family.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        queries: points ``(*B, N, D)``; None for the samples themselves.
        kernel: "rbf" or "imq".
        bandwidth: h, a number, or one per set, ``(*B)``; None is the median distance of each set.
        lam: strength of the penalty, in units that do not depend on those of the data.
        base_scale: q0 is a normal law with the mean of the samples and so many times their
            standard deviations; None is no q0.
        inducing: points ``(*B, m, D)`` for the Nystrom method.
        include_diagonal: let zero distances count in the median.
        chunk_size: queries taken at a time; None bounds the memory.

    Returns:
        Scores, ``(*B, M, D)`` or ``(*B, N, D)``.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, if a
            number is out of range, or if queries do not go with the samples.

    Example:
        >>> kernel_exp_family_score(torch.randn(8, 30, 2), torch.zeros(8, 5, 2)).shape
        torch.Size([8, 5, 2])
    """
    fitted = fit_kernel_exp_family(
        samples,
        kernel=kernel,
        bandwidth=bandwidth,
        lam=lam,
        base_scale=base_scale,
        inducing=inducing,
        include_diagonal=include_diagonal,
    )
    if queries is not None:
        check_queries(queries, samples)
    return fitted.score(samples if queries is None else queries, chunk_size)


def _tikhonov(xi: Drift, lam: Tensor) -> Tensor:
    """``c = (G + M lam I)^-1 grad xi / lam`` at the samples."""
    x = xi.samples
    matrix = xi.kernel.mixed(x, x).flatten(-2).flatten(-3, -2)
    ridge = (x.shape[-2] * lam)[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=x.dtype, device=x.device)
    factor, _ = torch.linalg.cholesky_ex(matrix + ridge * eye)
    slopes = in_chunks(xi.gradient, x, x.shape[-2]).flatten(-2)[..., None]
    return torch.cholesky_solve(slopes, factor).reshape(x.shape) / lam[..., None, None]


def _nystrom(xi: Drift, z: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """The a and c of least loss: ``-(F'F / M + lam Gamma)^-1 <., xi>`` for the basis (xi, k_bj).

    F holds the gradients of the basis at the samples, Gamma its inner products. The basis is made
    orthonormal first, so that the system is no worse conditioned than the problem.
    """
    unit = 1 / xi.norm_square().sqrt()  # gives xi the norm one
    gamma = _inner_products(xi, z, unit)
    basis = _inverse_root(gamma)
    system = _squares(xi, z, unit, basis) / xi.samples.shape[-2]
    eye = torch.eye(system.shape[-1], dtype=z.dtype, device=z.device)
    system = system + lam[..., None, None] * eye
    factor, _ = torch.linalg.cholesky_ex(system)
    along = basis.mT @ gamma[..., :1] / unit[..., None, None]
    w = -(basis @ torch.cholesky_solve(along, factor))[..., 0]
    return -w[..., 0] * unit, w[..., 1:].reshape(z.shape)


def _inner_products(xi: Drift, z: Tensor, unit: Tensor) -> Tensor:
    """Those of the basis: ``<xi, k_bj>`` is a derivative of xi, ``<k_bj, k_ci>`` one of k."""
    border = unit[..., None] * xi.gradient(z).flatten(-2)
    corner = torch.ones_like(border[..., :1])
    top = torch.cat([corner, border], -1)[..., None, :]
    rest = xi.kernel.mixed(z, z).flatten(-2).flatten(-3, -2)
    return torch.cat([top, torch.cat([border[..., None], rest], -1)], -2)


def _inverse_root(gamma: Tensor) -> Tensor:
    """T with ``T' gamma T = I`` on the range of gamma, and zero columns for the rest."""
    values, vectors = torch.linalg.eigh(gamma)
    keep = values > values[..., -1:] * values.shape[-1] * torch.finfo(values.dtype).eps
    return vectors * torch.where(keep, values, 1.0).rsqrt().mul(keep)[..., None, :]


def _squares(xi: Drift, z: Tensor, unit: Tensor, basis: Tensor) -> Tensor:
    """``T'F'F T``, a part of the samples at a time."""
    rows = max(1, 2**24 // (xi.samples.shape[-1] * basis[..., 0].numel()))
    total = torch.zeros_like(basis)
    for x in xi.samples.split(rows, dim=-2):
        first = unit[..., None, None] * xi.gradient(x).flatten(-2)[..., None]
        rest = xi.kernel.mixed(x, z).flatten(-2).flatten(-3, -2)
        part = torch.cat([first, rest], -1) @ basis
        total = total + part.mT @ part
    return total


class KernelExpFamilyEstimator(LogDensityMixin, ScoreEstimator):
    """A kernel exponential family fitted by score matching, as a scikit-learn estimator.

    See `KernelExpFamily` for its formulas. `score_samples` is its log-density up to a constant:
    differences between points mean something, the values themselves do not.

    Args:
        kernel: "rbf" or "imq".
        bandwidth: of the kernel; None is the median distance between samples.
        lam: strength of the penalty on f; the nu-method goes without.
        base_scale: q0 is a normal law with the mean of the samples and so many times their
            standard deviations; None is no q0, and a score that falls to zero far from the data.
        method: "tikhonov" solves linear equations, "nu" iterates and stops early.
        num_inducing: samples, drawn at random, whose derivatives span f, for "tikhonov"; None for
            all, which costs (N D)^3; "auto" for all while N D <= 2000, then for 1000 / D.
        num_iterations: of the nu-method; fewer are smoother.
        nu: order of the nu-method.
        random_state: draws the inducing samples.
        device: where to compute; None for the CPU.

    Attributes:
        fitted_: the `KernelExpFamily`.
        bandwidth_: of the kernel.
        n_features_in_: D.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> estimator = KernelExpFamilyEstimator().fit(X)
        >>> bool(np.abs(estimator.grad_log_density([[1.0, -1.0]]) - [[-1.0, 1.0]]).max() < 0.5)
        True
        >>> likely, unlikely = estimator.score_samples([[0.0, 0.0], [2.0, 2.0]])
        >>> bool(likely > unlikely)
        True
    """

    def __init__(
        self,
        kernel: str = "rbf",
        bandwidth: float | None = None,
        lam: float = 1e-2,
        base_scale: float | None = 2.0,
        method: str = "tikhonov",
        num_inducing: int | str | None = "auto",
        num_iterations: int = 10,
        nu: float = 1.0,
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        """Keep the arguments."""
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.lam = lam
        self.base_scale = base_scale
        self.method = method
        self.num_inducing = num_inducing
        self.num_iterations = num_iterations
        self.nu = nu
        self.random_state = random_state
        self.device = device

    def _fit(self, x: Tensor) -> None:
        if self.method not in ("tikhonov", "nu"):
            raise ValueError(
                f'method must be "tikhonov" or "nu", got {self.method!r}; "tikhonov" suits most'
            )
        self.fitted_ = self._tikhonov(x) if self.method == "tikhonov" else self._iterate(x)
        self.bandwidth_ = float(self.fitted_.kernel.bandwidth)

    def _tikhonov(self, x: Tensor) -> KernelExpFamily:
        num = self._num_inducing(x)
        order = torch.randperm(len(x), generator=self._generator(), device=x.device)
        return fit_kernel_exp_family(
            x,
            kernel=self.kernel,
            bandwidth=self.bandwidth,
            lam=self.lam,
            base_scale=self.base_scale,
            inducing=None if num is None else x[order[:num]],
        )

    def _iterate(self, x: Tensor) -> KernelExpFamily:
        return fit_nu_method(
            x,
            kernel=self.kernel,
            bandwidth=self.bandwidth,
            num_iterations=self.num_iterations,
            nu=self.nu,
            base_scale=self.base_scale,
        )

    def _num_inducing(self, x: Tensor) -> int | None:
        """How many inducing samples; None for all, by the full solution."""
        num = self.num_inducing
        if num == "auto":
            few = max(1, _INDUCED_EQUATIONS // x.shape[1])
            return None if x.numel() <= _MOST_EQUATIONS else few
        if num is not None:
            check_count(num, "num_inducing", 'None takes all samples, "auto" what is affordable')
            return int(num)
        return None

    def _field(self) -> VectorField:
        return VectorField(self.fitted_.score)

    def _log_density(self, x: Tensor) -> Tensor:
        return self.fitted_.log_density(x)

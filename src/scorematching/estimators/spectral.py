"""The spectral Stein gradient estimator (Shi, Sun and Zhu, 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values, check_count, check_flag, is_number
from scorematching.estimators.base import ScoreEstimator
from scorematching.fields import VectorField
from scorematching.kernels import (
    Kernel,
    check_queries,
    check_samples,
    in_chunks,
    kernel_for,
)

Eigenpairs = tuple[Tensor, Tensor]
"""Eigenvalues ``(*B, M)``, largest first, and eigenvectors as columns, ``(*B, M, M)``."""


def eigenpairs(matrices: Tensor) -> Eigenpairs:
    """Eigenpairs of symmetric matrices ``(*B, M, M)``, as torch finds them."""
    values, vectors = torch.linalg.eigh(matrices)
    return values.flip(-1), vectors.flip(-1)


@dataclass(frozen=True, eq=False)
class SpectralScore:
    """The spectral estimate for sets of samples, ready to be evaluated.

    The score is expanded in eigenfunctions of the kernel under the law of the samples, which the
    Nystrom method takes from the eigenvectors of the kernel matrix, ``K = U diag(mu) U'``. Stein's
    identity gives the coefficients::

        psi_j(x) = sqrt(M) / mu_j  sum_m U_mj k(x, x_m)
        beta_j   = -1/M sum_i grad psi_j(x_i)
        score(x) = sum_{j <= J} beta_j psi_j(x)

    All sums over j are done once: with ``G_i = sum_j grad_{x_j} k(x_i, x_j)``, as for Stein,
    ``score(x) = sum_m k(x, x_m) C_m`` with ``C = -sum_{j <= J} U_j U_j' G / mu_j^2``.

    Attributes:
        samples: ``(*B, M, D)``.
        kernel: with one bandwidth per set.
        coefficients: C, ``(*B, M, D)``.
        values: the score at the samples, ``-sum_{j <= J} U_j U_j' G / mu_j``, ``(*B, M, D)``.
        eigenvalues: mu, largest first, ``(*B, M)``.
        num_eigen: J, one integer per set, ``(*B)``.

    Example:
        >>> fitted = fit_spectral(torch.randn(100, 2))
        >>> fitted.score(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """

    samples: Tensor
    kernel: Kernel
    coefficients: Tensor
    values: Tensor
    eigenvalues: Tensor
    num_eigen: Tensor

    def at_samples(self) -> Tensor:
        """The score at the samples themselves, ``(*B, M, D)``."""
        return self.values

    def score(self, x: Tensor, chunk_size: int | None = None) -> Tensor:
        """The score at points, differentiable in them; cost M D for each.

        Args:
            x: points ``(*B, N, D)``.
            chunk_size: points taken at a time; None bounds the memory.

        Returns:
            ``(*B, N, D)``.
        """
        return in_chunks(self._score, x, self.samples.shape[-2], chunk_size)

    def _score(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.samples) @ self.coefficients


def fit_spectral(
    samples: Tensor,
    *,
    num_eigen: int | None = None,
    mass: float = 0.99,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    include_diagonal: bool = False,
    average_mass: bool = False,
    solver: Callable[[Tensor], Eigenpairs] = eigenpairs,
) -> SpectralScore:
    """The spectral estimate for one or many sets of samples; see `SpectralScore`.

    J, the number of eigenfunctions, follows from the samples at every call: the eigenvalues,
    largest first, whose running sum is below a share ``mass`` of the sum of all, at least one.
    Cost: an eigendecomposition, M^3, of each set.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        num_eigen: J; None for the rule above.
        mass: share of the eigenvalues' sum to stay below.
        kernel: "rbf" or "imq".
        bandwidth: a number, or one per set, ``(*B)``; None is the median distance of each set.
        include_diagonal: let zero distances count in the median, as the paper's code does.
        average_mass: one J for all sets, from their mean eigenvalues, as the paper's code does;
            False takes a J for each.
        solver: eigenpairs of positive semidefinite matrices, largest first.

    Returns:
        The fitted score.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, if
            num_eigen is larger than M, mass is not a share, or an eigenvalue that is kept is zero.

    Example:
        >>> fit_spectral(torch.randn(8, 100, 2), num_eigen=6).num_eigen.tolist()
        [6, 6, 6, 6, 6, 6, 6, 6]
    """
    check_samples(samples)
    _check_share(num_eigen, mass, samples.shape[-2])
    check_flag(average_mass, "average_mass", "True takes one number of eigenpairs for all sets")
    k = kernel_for(samples, kernel, bandwidth, include_diagonal)
    mu, U = solver(k(samples, samples))
    if num_eigen is None:
        weighed = mu.reshape(-1, mu.shape[-1]).mean(0).expand_as(mu) if average_mass else mu
        count = _count(weighed, mass)
    else:
        count = torch.full(mu.shape[:-1], num_eigen, device=mu.device)
    kept = torch.arange(mu.shape[-1], device=mu.device) < count[..., None]
    _check_kept(mu, kept)
    inverse = torch.where(kept, 1 / mu, 0.0)[..., None]
    beta = -inverse * (U.mT @ -k.grad_sum(samples, samples))
    return SpectralScore(samples, k, U @ (inverse * beta), U @ beta, mu, count)


def spectral_score(
    samples: Tensor,
    queries: Tensor | None = None,
    *,
    num_eigen: int | None = None,
    mass: float = 0.99,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    include_diagonal: bool = False,
    average_mass: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """The score of the law of samples by a spectral expansion; see `SpectralScore`.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        queries: points ``(*B, N, D)``; None for the samples themselves.
        num_eigen: J, eigenfunctions to keep; None for those that make up ``mass``.
        mass: share of the eigenvalues' sum to stay below.
        kernel: "rbf" or "imq".
        bandwidth: a number, or one per set, ``(*B)``; None is the median distance of each set.
        include_diagonal: let zero distances count in the median, as the paper's code does.
        average_mass: one J for all sets, from their mean eigenvalues, as the paper's code does.
        chunk_size: queries taken at a time; None bounds the memory.

    Returns:
        Scores, ``(*B, M, D)`` or ``(*B, N, D)``.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, if
            num_eigen or mass is out of range, or if queries do not go with the samples.

    Reference: Shi, Sun and Zhu (2018), A spectral approach to gradient estimation for implicit
    distributions, Section 3.

    Example:
        Evaluated at a sample, the expansion is the estimate at that sample.

        >>> x = torch.randn(40, 2, dtype=torch.float64)
        >>> torch.allclose(spectral_score(x, x[:5]), spectral_score(x)[:5])
        True
    """
    fitted = fit_spectral(
        samples,
        num_eigen=num_eigen,
        mass=mass,
        kernel=kernel,
        bandwidth=bandwidth,
        include_diagonal=include_diagonal,
        average_mass=average_mass,
    )
    if queries is None:
        return fitted.at_samples()
    check_queries(queries, samples)
    return fitted.score(queries, chunk_size)


class SpectralScoreEstimator(ScoreEstimator):
    """The spectral Stein gradient estimator (Shi et al., 2018), as a scikit-learn estimator.

    See `SpectralScore` for its formula. Cost: N^3 to fit, N per point.

    Args:
        num_eigen: J, eigenfunctions to keep; None for those that make up ``mass``.
        mass: share of the eigenvalues' sum to stay below.
        kernel: "rbf" or "imq".
        bandwidth: of the kernel; None is the median distance between samples.
        device: where to compute; None for the CPU.

    Attributes:
        fitted_: the `SpectralScore`.
        bandwidth_: of the kernel.
        num_eigen_: J.
        n_features_in_: D.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> score = SpectralScoreEstimator().fit(X).grad_log_density([[1.0, -1.0]])
        >>> bool(np.abs(score - [[-1.0, 1.0]]).max() < 0.5)  # that of N(0, I) is -x
        True
    """

    def __init__(
        self,
        num_eigen: int | None = None,
        mass: float = 0.99,
        kernel: str = "rbf",
        bandwidth: float | None = None,
        device: str | None = None,
    ) -> None:
        """Keep the arguments."""
        self.num_eigen = num_eigen
        self.mass = mass
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.device = device

    def _fit(self, x: Tensor) -> None:
        self.fitted_ = fit_spectral(
            x,
            num_eigen=self.num_eigen,
            mass=self.mass,
            kernel=self.kernel,
            bandwidth=self.bandwidth,
        )
        self.bandwidth_ = float(self.fitted_.kernel.bandwidth)
        self.num_eigen_ = int(self.fitted_.num_eigen)

    def _field(self) -> VectorField:
        return VectorField(self.fitted_.score)


def _count(mu: Tensor, mass: float) -> Tensor:
    """How many eigenvalues, largest first, sum up to less than a share; at least one."""
    share = mu.cumsum(-1) / mu.sum(-1, keepdim=True)
    return (share < mass).sum(-1).clamp(min=1)


def _check_kept(mu: Tensor, kept: Tensor) -> None:
    # Eigenvalues at the level of rounding are noise, and so are their inverses.
    floor = mu[..., :1] * mu.shape[-1] * torch.finfo(mu.dtype).eps
    if can_read_values(mu) and bool((kept & (mu <= floor)).any()):
        rank = int((mu > floor).sum(-1).min())
        raise ValueError(
            f"num_eigen must be at most {rank}, the rank of the kernel matrix to rounding, got "
            f"{int(kept.sum(-1).max())}; keep fewer, or take mass=0.99 and no num_eigen"
        )


def _check_share(num_eigen: Any, mass: Any, num: int) -> None:
    if num_eigen is not None:
        check_count(num_eigen, "num_eigen", "None follows from mass")
        if num_eigen > num:
            raise ValueError(
                f"num_eigen must be at most the number of samples, {num}, got {num_eigen}; "
                "None follows from mass"
            )
    if not is_number(mass) or not 0 < mass <= 1:
        raise ValueError(f"mass must lie between 0 and 1, got {mass!r}; 0.99 suits most samples")

"""The spectral Stein gradient estimator (Shi, Sun and Zhu, 2018)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values, check_count, check_flag, check_type, is_number
from scorematching._memory import limited
from scorematching._precision import without_autocast
from scorematching.kernels.bandwidth import kernel_for
from scorematching.kernels.base import KernelScore, checked_samples
from scorematching.kernels.distances import in_chunks, widened
from scorematching.kernels.memory import check_memory

_ADVICE = "take a random subset, or SlicedScoreEstimator, which is trained"

Eigenpairs = tuple[Tensor, Tensor]
"""Eigenvalues ``(*B, M)``, largest first, and eigenvectors as columns, ``(*B, M, M)``."""


def eigenpairs(matrices: Tensor) -> Eigenpairs:
    """Eigenpairs of symmetric matrices ``(*B, M, M)``, by torch's solver."""
    values, vectors = torch.linalg.eigh(matrices)
    return values.flip(-1), vectors.flip(-1)


@dataclass(frozen=True, eq=False, repr=False)
class SpectralScore(KernelScore):
    """The spectral estimate, by `fit_spectral`.

    The score is expanded in eigenfunctions of the kernel under the distribution of the samples,
    which the Nystrom method takes from eigenvectors of the kernel matrix, ``K = U diag(mu) U'``.
    Stein's identity gives the coefficients::

        psi_j(x) = sqrt(M) / mu_j  sum_m U_mj k(x, x_m)
        beta_j   = -1/M sum_i grad psi_j(x_i)
        score(x) = sum_{j <= J} beta_j psi_j(x)

    The sums over j are done once: with ``G_i = sum_j grad_{x_j} k(x_i, x_j)``, as for Stein,
    ``score(x) = sum_m k(x, x_m) C_m`` with ``C = -sum_{j <= J} U_j U_j' G / mu_j^2``. Cost: M D
    per point.

    Attributes:
        coefficients: C, ``(*B, M, D)``.
        values: the score at the samples, ``-sum_{j <= J} U_j U_j' G / mu_j``, ``(*B, M, D)``.
        eigenvalues: mu, largest first, ``(*B, M)``.
        num_eigen: J, one integer per set, ``(*B)``.

    Example:
        Evaluated at a sample, the expansion is the estimate at that sample.

        >>> x = torch.randn(40, 2, dtype=torch.float64)
        >>> fitted = fit_spectral(x)
        >>> torch.allclose(fitted.score(x), fitted.at_samples())
        True
    """

    coefficients: Tensor
    values: Tensor
    eigenvalues: Tensor
    num_eigen: Tensor

    def at_samples(self) -> Tensor:
        """The score at the samples themselves, ``(*B, M, D)``."""
        return self.values

    @property
    def _fitted(self) -> Tensor:
        return self.coefficients

    def _score(self, x: Tensor) -> Tensor:
        return self.kernel(x, self._wide) @ self.coefficients


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
    max_memory: int | None = None,
) -> SpectralScore:
    """The spectral estimate for one or many sets of samples; see `SpectralScore`.

    Cost: an eigendecomposition, M^3, of each set.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        num_eigen: J, the number of eigenfunctions; None takes the largest eigenvalues whose
            running sum is below a share ``mass`` of the sum of all, at least one.
        mass: that share.
        kernel: "rbf" or "imq".
        bandwidth: a number, or one per set, ``(*B)``; None is the median distance of each set.
        include_diagonal: count zero distances in the median, as the paper's code does.
        average_mass: one J for all sets, from their mean eigenvalues, as the paper's code does;
            False chooses J for each set.
        solver: eigenpairs of positive semidefinite matrices, largest first.
        max_memory: bytes that the fit may take beside the samples, its result included, which is
            measured; None is without limit.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, if
            num_eigen is larger than M, mass is not a share, an eigenvalue that is kept is zero, or
            four kernel matrices do not fit into the memory.

    Reference: Shi, Sun and Zhu (2018), A spectral approach to gradient estimation for implicit
    distributions, Section 3.

    Example:
        >>> fit_spectral(torch.randn(8, 100, 2), num_eigen=6).num_eigen.tolist()
        [6, 6, 6, 6, 6, 6, 6, 6]
    """
    samples = checked_samples(samples)
    _check_share(num_eigen, mass, samples.shape[-2])
    _check_options(average_mass, solver)
    with limited(max_memory, _ADVICE) as budget, without_autocast(samples):
        wide, num = widened(samples), samples.shape[-2]
        check_memory(wide, 4, _ADVICE, budget)
        k = kernel_for(samples, kernel, bandwidth, include_diagonal, budget)
        sums = in_chunks(lambda x: k.grad_sum(x, wide), wide, num, budget=budget)
        mu, U = solver(in_chunks(lambda x: k(x, wide), wide, num, budget=budget))
        count = _num_kept(mu, num_eigen, mass, average_mass)
        kept = torch.arange(num, device=mu.device) < count[..., None]
        _check_kept(mu, kept)
        inverse = torch.where(kept, 1 / mu, 0.0)[..., None]
        beta = -inverse * (U.mT @ -sums)
        values = (U @ beta).to(samples.dtype)
        return SpectralScore(samples, k, U @ (inverse * beta), values, mu.to(samples.dtype), count)


def _num_kept(mu: Tensor, num_eigen: int | None, mass: float, average_mass: bool) -> Tensor:
    """J, one integer per set, ``(*B)``."""
    if num_eigen is not None:
        return torch.full(mu.shape[:-1], num_eigen, device=mu.device)
    spectra = mu.reshape(-1, mu.shape[-1]).mean(0).expand_as(mu) if average_mass else mu
    share = spectra.cumsum(-1) / spectra.sum(-1, keepdim=True)
    return (share < mass).sum(-1).clamp(min=1)


def _check_kept(mu: Tensor, kept: Tensor) -> None:
    # Eigenvalues of the size of rounding errors are noise, and so are their inverses.
    floor = mu[..., :1] * mu.shape[-1] * torch.finfo(mu.dtype).eps
    if can_read_values(mu) and bool((kept & (mu <= floor)).any()):
        rank = int((mu > floor).sum(-1).min())
        raise ValueError(
            f"num_eigen must be at most {rank}, the rank of the kernel matrix to rounding, got "
            f"{int(kept.sum(-1).max())}; keep fewer, or take mass=0.99 and no num_eigen"
        )


def _check_options(average_mass: Any, solver: Any) -> None:
    """Require a flag and a function."""
    check_flag(average_mass, "average_mass", "True takes one number of eigenpairs for all sets")
    advice = "pass a function of matrices that returns (mu, U)"
    check_type(solver, Callable, "solver must be callable", advice)


def _check_share(num_eigen: Any, mass: Any, num: int) -> None:
    if num_eigen is not None:
        check_count(num_eigen, "num_eigen", "None chooses it by mass")
        if num_eigen > num:
            raise ValueError(
                f"num_eigen must be at most the number of samples, {num}, got {num_eigen}; "
                "None chooses it by mass"
            )
    if not is_number(mass) or not 0 < mass <= 1:
        raise ValueError(f"mass must lie between 0 and 1, got {mass!r}; 0.99 suits most samples")

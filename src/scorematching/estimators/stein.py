"""The Stein gradient estimator (Li and Turner, 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching._checks import can_read_values, is_number
from scorematching.estimators.base import ScoreEstimator
from scorematching.fields import VectorField
from scorematching.kernels import (
    Kernel,
    check_queries,
    check_samples,
    in_chunks,
    kernel_for,
)


@dataclass(frozen=True, eq=False)
class SteinScore:
    """The Stein estimate for sets of samples, ready to be evaluated.

    Stein's identity ``E[k(x', x) score(x)' + grad_x k(x', x)] = 0``, taken at every sample x' and
    solved for the scores S at the samples by ridge regression::

        S = -(K + eta I)^-1 G        G_i = sum_j grad_{x_j} k(x_i, x_j)

    At another point, `score` is what the same formula says there once the point is appended to
    the samples (the nonparametric prediction of Li and Turner), by a Schur complement: with
    ``k_j = k(x, x_j)`` and ``w = (K + eta I)^-1 k``::

        score(x) = (sum_j (1 + w_j) grad_x k(x, x_j) + G' w) / (1 + eta - k.w)

    Attributes:
        samples: ``(*B, M, D)``.
        kernel: with one bandwidth per set.
        eta: ridge.
        root: L^-1, for the Cholesky factor ``L L' = K + eta I``, ``(*B, M, M)``.
        steepness: G, ``(*B, M, D)``.

    Example:
        >>> fitted = fit_stein(torch.randn(100, 2))
        >>> fitted.score(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """

    samples: Tensor
    kernel: Kernel
    eta: float
    root: Tensor
    steepness: Tensor

    def at_samples(self) -> Tensor:
        """The score at the samples themselves, ``(*B, M, D)``."""
        return -self.root.mT @ (self.root @ self.steepness)

    def score(self, x: Tensor, chunk_size: int | None = None) -> Tensor:
        """The score at points, differentiable in them; cost M^2 for each.

        Args:
            x: points ``(*B, N, D)``.
            chunk_size: points taken at a time; None bounds the memory.

        Returns:
            ``(*B, N, D)``.
        """
        return in_chunks(self._score, x, self.samples.shape[-2], chunk_size)

    def _score(self, x: Tensor) -> Tensor:
        u = self.kernel(x, self.samples) @ self.root.mT
        w = u @ self.root
        pull = self.kernel.grad_sum(x, self.samples, 1 + w) + w @ self.steepness
        return pull / (1 + self.eta - u.square().sum(-1, keepdim=True))


def fit_stein(
    samples: Tensor,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    eta: float = 1e-3,
    include_diagonal: bool = False,
) -> SteinScore:
    """The Stein estimate for one or many sets of samples; see `SteinScore`.

    Cost: M^3 for each set.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        kernel: "rbf" or "imq".
        bandwidth: a number, or one per set, ``(*B)``; None is the median distance of each set.
        eta: ridge, added to the kernel matrix.
        include_diagonal: let zero distances count in the median, as the paper's code does.

    Returns:
        The fitted score.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, or if
            the kernel matrix is singular.

    Example:
        >>> fit_stein(torch.randn(8, 100, 2)).at_samples().shape
        torch.Size([8, 100, 2])
    """
    check_samples(samples)
    _check_eta(eta)
    k = kernel_for(samples, kernel, bandwidth, include_diagonal)
    matrix = k(samples, samples)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(matrix + eta * eye)
    _check_factor(info, eta)
    root = torch.linalg.solve_triangular(factor, eye, upper=False)
    return SteinScore(samples, k, eta, root, -k.grad_sum(samples, samples))


def stein_score(
    samples: Tensor,
    queries: Tensor | None = None,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    eta: float = 1e-3,
    include_diagonal: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """The score of the law of samples by Stein's identity; see `SteinScore`.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        queries: points ``(*B, N, D)``; None for the samples themselves.
        kernel: "rbf" or "imq".
        bandwidth: a number, or one per set, ``(*B)``; None is the median distance of each set.
        eta: ridge, added to the kernel matrix.
        include_diagonal: let zero distances count in the median, as the paper's code does.
        chunk_size: queries taken at a time; None bounds the memory.

    Returns:
        Scores, ``(*B, M, D)`` or ``(*B, N, D)``.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, if the
            kernel matrix is singular, or if queries do not go with the samples.

    Reference: Li and Turner (2018), Gradient estimators for implicit models, Sections 3.1 and 3.3.

    Example:
        Appending a point to the samples is what `queries` does.

        >>> x, y = torch.randn(30, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
        >>> appended = stein_score(torch.cat([x, y]), bandwidth=1.0)[-1:]
        >>> torch.allclose(stein_score(x, y, bandwidth=1.0), appended)
        True
    """
    fitted = fit_stein(
        samples, kernel=kernel, bandwidth=bandwidth, eta=eta, include_diagonal=include_diagonal
    )
    if queries is None:
        return fitted.at_samples()
    check_queries(queries, samples)
    return fitted.score(queries, chunk_size)


class SteinScoreEstimator(ScoreEstimator):
    """The Stein gradient estimator (Li and Turner, 2018), as a scikit-learn estimator.

    See `SteinScore` for its formula. `grad_log_density` appends each point to the samples, one at
    a time, whether or not it is one of them. Cost: N^3 to fit, N^2 per point.

    Args:
        kernel: "rbf" or "imq".
        bandwidth: of the kernel; None is the median distance between samples.
        eta: ridge, added to the kernel matrix.
        device: where to compute; None for the CPU.

    Attributes:
        fitted_: the `SteinScore`.
        bandwidth_: of the kernel.
        n_features_in_: D.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> estimator = SteinScoreEstimator(bandwidth=3.0, eta=0.1).fit(X)
        >>> score = estimator.grad_log_density([[1.0, -1.0]])
        >>> bool(np.abs(score - [[-1.0, 1.0]]).max() < 0.5)  # that of N(0, I) is -x
        True
    """

    def __init__(
        self,
        kernel: str = "rbf",
        bandwidth: float | None = None,
        eta: float = 1e-3,
        device: str | None = None,
    ) -> None:
        """Keep the arguments."""
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.eta = eta
        self.device = device

    def _fit(self, x: Tensor) -> None:
        self.fitted_ = fit_stein(x, kernel=self.kernel, bandwidth=self.bandwidth, eta=self.eta)
        self.bandwidth_ = float(self.fitted_.kernel.bandwidth)

    def _field(self) -> VectorField:
        return VectorField(self.fitted_.score)


def _check_eta(eta: float) -> None:
    if not is_number(eta) or not 0 <= eta < float("inf"):
        raise ValueError(
            f"eta must be a finite number, zero or larger, got {eta!r}; 1e-3 suits most samples"
        )


def _check_factor(info: Tensor, eta: float) -> None:
    if can_read_values(info) and bool(info.any()):
        raise ValueError(
            f"eta must be large enough for a kernel matrix that is not singular, got {eta!r} in "
            f"{int((info > 0).sum())} sets of samples; repeated samples, or a wide bandwidth, need "
            "eta = 1e-3 or more"
        )

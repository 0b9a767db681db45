"""The Stein gradient estimator (Li and Turner, 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching._checks import can_read_values, is_number
from scorematching.kernels.bandwidth import kernel_for
from scorematching.kernels.base import KernelScore, check_samples
from scorematching.kernels.memory import check_memory


@dataclass(frozen=True, eq=False)
class SteinScore(KernelScore):
    """The Stein estimate, by `fit_stein`.

    Stein's identity ``E[k(x', x) score(x)' + grad_x k(x', x)] = 0``, taken at every sample x' and
    solved for the scores S at the samples by ridge regression::

        S = -(K + eta I)^-1 G        G_i = sum_j grad_{x_j} k(x_i, x_j)

    At another point, `score` is the value of the same formula there after the point is appended
    to the samples (the nonparametric prediction of Li and Turner), by a Schur complement: with
    ``k_j = k(x, x_j)`` and ``w = (K + eta I)^-1 k``::

        score(x) = (sum_j (1 + w_j) grad_x k(x, x_j) + G' w) / (1 + eta - k.w)

    Cost: M^2 per point.

    Attributes:
        eta: ridge.
        root: L^-1, for the Cholesky factor ``L L' = K + eta I``, ``(*B, M, M)``.
        gradient_sums: G, ``(*B, M, D)``.

    Example:
        Appending a point to the samples is what `score` does.

        >>> x, y = torch.randn(30, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
        >>> appended = fit_stein(torch.cat([x, y]), bandwidth=1.0).at_samples()[-1:]
        >>> torch.allclose(fit_stein(x, bandwidth=1.0).score(y), appended)
        True
    """

    eta: float
    root: Tensor
    gradient_sums: Tensor

    def at_samples(self) -> Tensor:
        """The score at the samples themselves, ``(*B, M, D)``."""
        return -self.root.mT @ (self.root @ self.gradient_sums)

    def _score(self, x: Tensor) -> Tensor:
        u = self.kernel(x, self.samples) @ self.root.mT
        w = u @ self.root
        total = self.kernel.grad_sum(x, self.samples, 1 + w) + w @ self.gradient_sums
        return total / (1 + self.eta - u.square().sum(-1, keepdim=True))


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
        include_diagonal: count zero distances in the median, as the paper's code does.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, or if
            the kernel matrix is singular.

    Reference: Li and Turner (2018), Gradient estimators for implicit models, Sections 3.1 and 3.3.

    Example:
        >>> fit_stein(torch.randn(8, 100, 2)).at_samples().shape
        torch.Size([8, 100, 2])
    """
    check_samples(samples)
    if not is_number(eta) or not 0 <= eta < float("inf"):
        raise ValueError(
            f"eta must be a finite number, zero or larger, got {eta!r}; 1e-3 suits most samples"
        )
    check_memory(samples, 4, "take a random subset, or SlicedScoreEstimator, which is trained")
    k = kernel_for(samples, kernel, bandwidth, include_diagonal)
    matrix = k(samples, samples)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(matrix + eta * eye)
    if can_read_values(info) and bool(info.any()):
        raise ValueError(
            f"eta must be large enough to make the kernel matrix positive definite, got {eta!r} in "
            f"{int((info > 0).sum())} sets of samples; repeated samples, or a wide bandwidth, need "
            "eta = 1e-3 or more"
        )
    root = torch.linalg.solve_triangular(factor, eye, upper=False)
    return SteinScore(samples, k, eta, root, -k.grad_sum(samples, samples))

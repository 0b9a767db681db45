"""The Stein gradient estimator (Li and Turner, 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching._checks import can_read_values, is_number
from scorematching._memory import limited
from scorematching._precision import without_autocast
from scorematching.kernels.bandwidth import kernel_for
from scorematching.kernels.base import KernelScore, add_ridge, checked_samples
from scorematching.kernels.distances import in_chunks, widened
from scorematching.kernels.memory import check_memory

_ADVICE = "take a random subset, or SlicedScoreEstimator, which is trained"


@dataclass(frozen=True, eq=False, repr=False)
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
        >>> fit_stein(x)
        SteinScore(RBF, samples (30, 2))
        >>> appended = fit_stein(torch.cat([x, y]), bandwidth=1.0).at_samples()[-1:]
        >>> torch.allclose(fit_stein(x, bandwidth=1.0).score(y), appended)
        True
    """

    eta: float
    root: Tensor
    gradient_sums: Tensor

    def at_samples(self) -> Tensor:
        """The score at the samples themselves, ``(*B, M, D)``."""
        with without_autocast(self.root):
            scores = -self.root.mT @ (self.root @ self.gradient_sums)
        return scores.to(self.samples.dtype)

    @property
    def _fitted(self) -> Tensor:
        return self.root

    def _score(self, x: Tensor) -> Tensor:
        y = self._wide
        u = self.kernel(x, y) @ self.root.mT
        w = u @ self.root
        total = self.kernel.grad_sum(x, y, 1 + w) + w @ self.gradient_sums
        rest = 1 + self.eta - u.square().sum(-1, keepdim=True)
        _require_rest(rest, self.eta)
        return total / rest


def fit_stein(
    samples: Tensor,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    eta: float = 1e-3,
    include_diagonal: bool = False,
    max_memory: int | None = None,
) -> SteinScore:
    """The Stein estimate for one or many sets of samples; see `SteinScore`.

    Cost: M^3 for each set.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        kernel: "rbf" or "imq".
        bandwidth: a number, or one per set, ``(*B)``; None is the median distance of each set.
        eta: ridge, added to the kernel matrix.
        include_diagonal: count zero distances in the median, as the paper's code does.
        max_memory: bytes that the fit may take beside the samples, its result included, which is
            measured; None is without limit.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, if the
            kernel matrix is singular, or three such matrices do not fit into the memory.

    Reference: Li and Turner (2018), Gradient estimators for implicit models, Sections 3.1 and 3.3.

    Example:
        >>> fit_stein(torch.randn(8, 100, 2)).at_samples().shape
        torch.Size([8, 100, 2])
    """
    samples = checked_samples(samples)
    if not is_number(eta) or not 0 <= eta < float("inf"):
        raise ValueError(
            f"eta must be a finite number, zero or larger, got {eta!r}; 1e-3 suits most samples"
        )
    with limited(max_memory, _ADVICE) as budget, without_autocast(samples):
        wide, num = widened(samples), samples.shape[-2]
        check_memory(wide, 3, _ADVICE, budget)
        k = kernel_for(samples, kernel, bandwidth, include_diagonal, budget)
        sums = in_chunks(lambda x: k.grad_sum(x, wide), wide, num, budget=budget)
        root = _inverse_root(in_chunks(lambda x: k(x, wide), wide, num, budget=budget), eta)
        return SteinScore(samples, k, eta, root, -sums)


def _require_rest(rest: Tensor, eta: float) -> None:
    """Refuse points at which the ridge does not keep a quotient of rounding errors apart."""
    rounding = 100 * torch.finfo(rest.dtype).eps
    if eta > rounding or not can_read_values(rest):  # the usual case
        return
    lost = rest <= rounding
    if bool(lost.any()):
        raise ValueError(
            f"eta must be larger for scores at points that the samples determine, got {eta!r} and "
            f"{int(lost.sum())} of them; take at_samples() at the samples, or eta=1e-3"
        )


def _inverse_root(matrix: Tensor, eta: float) -> Tensor:
    """L^-1, for the Cholesky factor L of a matrix plus eta I."""
    matrix = add_ridge(matrix, eta)
    factor, info = torch.linalg.cholesky_ex(matrix)
    del matrix
    if can_read_values(info) and bool(info.any()):
        raise ValueError(
            f"eta must be large enough to make the kernel matrix positive definite, got {eta!r} in "
            f"{int((info > 0).sum())} sets of samples; repeated samples, or a wide bandwidth, need "
            "eta = 1e-3 or more"
        )
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, eye, upper=False)

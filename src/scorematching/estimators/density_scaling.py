"""Whitening for density estimation, with the guards that raw tables need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching.datasets import Transform

_LEAST_RATIO = 1e-6


@dataclass(frozen=True, eq=False)
class SymmetricWhiten(Transform):
    """Mean 0 and covariance I, each column changed the least: ``z = (x - mean) / std C^-1/2``.

    C is the matrix of correlations. Units of the columns do not matter, and unlike principal
    components the symmetric root has no signs or order to choose.

    Args:
        mean: ``(D,)``.
        std: ``(D,)``, positive.
        root: ``C^(1/2)``, ``(D, D)``.
        inverse_root: ``C^(-1/2)``, ``(D, D)``.

    Example:
        >>> x = torch.randn(50, 2, dtype=torch.float64) * torch.tensor([1e-9, 1e9])
        >>> z = whitening(x)(x)
        >>> torch.allclose(z.T @ z / 50, torch.eye(2, dtype=torch.float64))
        True
    """

    mean: Tensor
    std: Tensor
    root: Tensor
    inverse_root: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """``(x - mean) / std C^-1/2``."""
        return (x - self.mean) / self.std @ self.inverse_root

    def inverse(self, z: Tensor) -> Tensor:
        """``z C^1/2 std + mean``."""
        return z @ self.root * self.std + self.mean

    def log_abs_det(self, x: Tensor) -> Tensor:
        """``-sum log std - log det C^1/2``, the same for every point."""
        log_volume = self.std.log().sum() + torch.linalg.slogdet(self.root).logabsdet
        return -log_volume.expand(x.shape[0])


def whitening(x: Tensor) -> SymmetricWhiten:
    """The map that gives points mean 0 and covariance I.

    Nothing is regularised: the density of a table whose columns determine each other would be
    infinite on a plane and zero elsewhere, so such tables are refused.

    Args:
        x: points ``(N, D)``.

    Returns:
        The map, with its inverse and its log-Jacobian.

    Raises:
        ValueError: if a column is constant, there are too few points, or some combination of the
            standardised columns varies a million times less than another.
    """
    _check_columns(x)
    mean, std = x.mean(0), x.std(0, correction=0)
    z = (x - mean) / std
    _check_rank(z)
    _, singular, vt = torch.linalg.svd(z, full_matrices=False)
    scales = singular / len(z) ** 0.5
    root, inverse_root = vt.mT * scales @ vt, vt.mT / scales @ vt
    return SymmetricWhiten(mean, std, root, inverse_root)


def _check_columns(x: Tensor) -> None:
    # A column of one huge value has a standard deviation that is rounding, not zero.
    rounding = 8 * torch.finfo(x.dtype).eps * x.abs().amax(0)
    constant = (x.amax(0) - x.amin(0) <= rounding).nonzero().flatten().tolist()
    if constant:
        raise ValueError(
            f"X must vary in every column, got a constant in {_listed(constant)}; drop such columns"
        )


def _check_rank(z: Tensor) -> None:
    n, d = z.shape
    if n <= d:
        raise ValueError(
            f"X must have more points than columns to be whitened, got n_samples = {n} and {d} "
            "columns; add points or drop columns"
        )
    singular = torch.linalg.svdvals(z)
    dependent = int((singular < _LEAST_RATIO * singular[0]).sum())
    if dependent:
        raise ValueError(
            f"X must have columns that do not determine each other, got {dependent} linear "
            f"relations among its {d} columns; drop columns (scorematching.datasets."
            "drop_correlated finds pairs) or add noise of the size of the rounding"
        )


def _listed(columns: list[int]) -> str:
    shown = ", ".join(map(str, columns[:10]))
    return f"column {shown}" if len(columns) == 1 else f"columns {shown}"

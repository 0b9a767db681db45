"""The normal distribution with a shrunk covariance."""

from __future__ import annotations

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from scorematching.distributions import Gaussian

_FLOOR = 1e-9
"""Least eigenvalue of a covariance, in units of the mean variance of the columns."""


def fit_gaussian(x: Tensor, shrink: bool = True) -> Gaussian:
    """The normal distribution of points.

    Args:
        x: points ``(N, D)``, roughly standardised.
        shrink: move the covariance towards a multiple of the identity, by as much as the number
            of points calls for; False is maximum likelihood.

    Returns:
        The distribution; its covariance is positive definite for any number of points.

    Reference: Ledoit and Wolf (2004), A well-conditioned estimator for large-dimensional
    covariance matrices.

    Example:
        >>> fit_gaussian(torch.tensor([[0.0, 0.0], [2.0, 2.0]]).double(), shrink=False).mean
        tensor([1., 1.], dtype=torch.float64)
    """
    centred = x - x.mean(0)
    covariance = centred.mT @ centred / len(x)
    return Gaussian(x.mean(0), shrunk(covariance, shrinkage(x) if shrink else 0.0))


def shrinkage(x: Tensor) -> float:
    """How far to shrink the covariance of points ``(N, D)``, from 0 to 1."""
    if x.shape[1] == 1:
        return 0.0
    _, share = ledoit_wolf(x.cpu().numpy())
    return float(share)


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """A covariance moved towards a multiple of the identity, and so far that it has full rank."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return covariance.lerp(covariance.diagonal().mean() * identity, max(share, _FLOOR))

"""Gaussians and mixtures of them."""

import math

import torch
from torch import Tensor

from scorematching.distributions.base import (
    Array,
    Distribution,
    check_shape,
    check_weights,
    component_covariances,
    inverse,
    log_det,
    tensors,
    whitener,
)


def standard_normal_log_density(z: Tensor) -> Tensor:
    """Log-density of N(0, I), ``(..., D) -> (...)``.

    Example:
        >>> z = torch.zeros(1, 2)
        >>> torch.allclose(standard_normal_log_density(z).exp(), torch.tensor(0.5 / math.pi))
        True
    """
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class Gaussian(Distribution):
    """The normal distribution N(mean, covariance).

    With W the whitener, ``W covariance W' = I``, and ``y = W (x - mean)``::

        log p(x) = -|y|^2 / 2 - D/2 log(2 pi) + log det W,    score(x) = -precision (x - mean)

    Args:
        mean: ``(D,)``.
        covariance: ``(D, D)``, symmetric and positive definite.

    Example:
        >>> p = Gaussian(mean=[1.0, 0.0], covariance=[[2.0, 1.0], [1.0, 2.0]])
        >>> x = torch.tensor([[1.0, 3.0]])
        >>> torch.allclose(p.score(x) @ p.covariance, p.mean - x)
        True
    """

    def __init__(self, mean: Array, covariance: Array) -> None:
        mean, covariance = tensors({"mean": mean, "covariance": covariance})
        check_shape(mean, "mean", (None,))
        check_shape(covariance, "covariance", (mean.shape[0], mean.shape[0]))
        super().__init__(mean.shape[0], like=mean)
        self.mean = mean
        self.whitener = whitener(covariance, "covariance")

    @property
    def precision(self) -> Tensor:
        """Inverse of the covariance, ``(D, D)``."""
        return self.whitener.mT @ self.whitener

    @property
    def covariance(self) -> Tensor:
        """Covariance, ``(D, D)``."""
        root = inverse(self.whitener)
        return root @ root.mT

    def _log_density(self, x: Tensor) -> Tensor:
        y = (x - self.mean) @ self.whitener.mT
        return standard_normal_log_density(y) + log_det(self.whitener)

    def _score(self, x: Tensor) -> Tensor:
        return -(x - self.mean) @ self.precision

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        eps = self._normal((n, self.dim), generator)
        return self.mean + eps @ inverse(self.whitener).mT


class GaussianMixture(Distribution):
    """A mixture of K normal distributions, ``p(x) = sum_k weights_k N(x; means_k, covariances_k)``.

    With r_k(x) the posterior probability of component k, ``score = sum_k r_k(x) score_k(x)``.

    Args:
        weights: ``(K,)``, positive, summing to 1.
        means: ``(K, D)``.
        covariances: ``(K, D, D)``; or ``(D, D)``, shared by all; or ``(K,)``, or one number: the
            *variance* c of an isotropic covariance c I.

    Example:
        Halfway between two equal components the score is zero.

        >>> p = GaussianMixture([0.5, 0.5], means=[[-2.0, 0.0], [2.0, 0.0]], covariances=1.0)
        >>> p.score(torch.zeros(1, 2)).abs().max().item()
        0.0
    """

    def __init__(self, weights: Array, means: Array, covariances: Array = 1.0) -> None:
        weights, means, covariances = tensors(
            {"weights": weights, "means": means, "covariances": covariances}
        )
        check_shape(means, "means", (None, None))
        check_weights(weights, means.shape[0])
        super().__init__(means.shape[1], like=means)
        self.means = means
        self._log_weights = weights.log()
        self._whiteners = whitener(component_covariances(covariances, means), "covariances")

    @property
    def weights(self) -> Tensor:
        """Probabilities of the components, ``(K,)``."""
        return self._log_weights.softmax(-1)

    @property
    def covariances(self) -> Tensor:
        """Covariances of the components, ``(K, D, D)``."""
        roots = inverse(self._whiteners)
        return roots @ roots.mT

    def _whiten(self, x: Tensor) -> Tensor:
        """``y_k = W_k (x - mean_k)``, ``(N, D) -> (N, K, D)``."""
        return torch.einsum("nkj,kij->nki", x[:, None] - self.means, self._whiteners)

    def _joint(self, y: Tensor) -> Tensor:
        """Log of weight times density of each component, ``(N, K, D) -> (N, K)``."""
        log_weights = self._log_weights.log_softmax(-1)
        return standard_normal_log_density(y) + log_det(self._whiteners) + log_weights

    def _log_density(self, x: Tensor) -> Tensor:
        return self._joint(self._whiten(x)).logsumexp(-1)

    def _score(self, x: Tensor) -> Tensor:
        y = self._whiten(x)
        posterior = self._joint(y).softmax(-1)
        return -torch.einsum("nk,nki,kij->nj", posterior, y, self._whiteners)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        component = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        eps = self._normal((n, self.dim), generator)
        roots = inverse(self._whiteners)
        candidates = self.means + torch.einsum("nj,kij->nki", eps, roots)
        return candidates[torch.arange(n, device=self.device), component]

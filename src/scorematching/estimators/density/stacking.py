"""Stacking: a mixture of fitted distributions, with weights by cross-validated likelihood."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scorematching.distributions import Distribution

_ITERATIONS, _TOLERANCE = 1000, 1e-7


class Stack(Distribution):
    """The mixture ``p(x) = sum_j w_j p_j(x)`` of distributions.

    With r_j(x) the posterior probability of part j, ``score = sum_j r_j(x) score_j(x)``.

    Args:
        parts: p, J normalised distributions of one dimension.
        weights: w, ``(J,)``, positive, summing to 1.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> left, right = Gaussian([-1.0], [[1.0]]), Gaussian([1.0], [[1.0]])
        >>> Stack([left, right], torch.tensor([0.5, 0.5])).score(torch.zeros(1, 1)).item()
        0.0
    """

    def __init__(self, parts: Sequence[Distribution], weights: Tensor) -> None:
        super().__init__(parts[0].dim, like=parts[0]._like)
        self.parts, self.log_weights = tuple(parts), weights.log().to(parts[0]._like)

    def _log_density(self, x: Tensor) -> Tensor:
        return self._joint(x).logsumexp(-1)

    def _score(self, x: Tensor) -> Tensor:
        posterior = self._joint(x).softmax(-1)
        scores = torch.stack([part._score(x) for part in self.parts], 1)
        return (posterior[:, :, None] * scores).sum(1)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        weights = self.log_weights.softmax(-1)
        chosen = torch.multinomial(weights, n, replacement=True, generator=generator)
        x = torch.empty(n, self.dim, dtype=self.dtype, device=self.device)
        for j, part in enumerate(self.parts):
            count = int((chosen == j).sum())
            if count:
                x[chosen == j] = part.sample(count, generator)
        return x

    def _joint(self, x: Tensor) -> Tensor:
        """Log of weight times density of each part, ``(N, J)``."""
        return torch.stack([part._log_density(x) for part in self.parts], -1) + self.log_weights


def stacking_weights(log_densities: Tensor, prior: Tensor | None = None) -> Tensor:
    """The weights of a mixture that maximise the likelihood of held-out points.

    The EM algorithm for weights alone: ``w_j <- mean_i w_j p_j(x_i) / sum_k w_k p_k(x_i)``. The
    likelihood is concave in w, so the maximum is the only one.

    Args:
        log_densities: ``log p_j(x_i)`` of J distributions that were not fitted to x_i, ``(N, J)``.
        prior: number of imagined points of each distribution, ``(J,)``; None is none.

    Returns:
        Weights ``(J,)``, summing to 1.

    Reference: Smyth and Wolpert (1999), Linearly combining density estimators via stacking.

    Example:
        >>> log_p = torch.tensor([[0.0, -1.0], [0.0, -1.0]])
        >>> stacking_weights(log_p).round(decimals=3).tolist()
        [1.0, 0.0]
    """
    j = log_densities.shape[1]
    prior = log_densities.new_zeros(j) if prior is None else prior.to(log_densities)
    log_weights = log_densities.new_zeros(j).log_softmax(0)
    previous = -torch.inf
    for _ in range(_ITERATIONS):
        joint = log_densities + log_weights
        counts = joint.softmax(1).sum(0) + prior
        log_weights = (counts / counts.sum()).log()
        likelihood = joint.logsumexp(1).mean().item()
        if abs(likelihood - previous) < _TOLERANCE:
            break
        previous = likelihood
    return log_weights.exp()

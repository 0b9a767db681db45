"""Laws of data given what a decoder says of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching._checks import is_number


@dataclass(frozen=True)
class BernoulliPixels:
    """Pixels that are 0 or 1, independent given the latents; the decoder gives logits.

    ``log p(x | z) = sum_d x_d l_d - log(1 + exp(l_d))``, the binary cross-entropy; for pixels
    between 0 and 1 it is the mean over their binarisations.

    Example:
        >>> coin = BernoulliPixels()
        >>> coin.log_prob(torch.zeros(1, 4), torch.ones(1, 4)).exp().item()  # 1 / 2^4
        0.0625
    """

    def mean(self, logits: Tensor) -> Tensor:
        """Probabilities of ones, ``(N, *event)``."""
        return logits.sigmoid()

    def log_prob(self, logits: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, ``(N, *event) -> (N,)``."""
        return (x * logits - F.softplus(logits)).flatten(1).sum(1)

    def sample(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw pixels, ``(N, *event)``."""
        return torch.bernoulli(self.mean(logits), generator=generator)


@dataclass(frozen=True)
class NormalPixels:
    """Pixels with independent normal errors of one size; the decoder gives means.

    ``log p(x | z) = sum_d -0.5 ((x_d - m_d) / std)^2 - log std - 0.5 log(2 pi)``.

    Args:
        log_std: logarithm of std; -0.602 (std 0.55) is the value behind the published experiments
            on faces, whose pixels are between -1 and 1.

    Example:
        >>> unit = NormalPixels(log_std=0.0)
        >>> x = torch.ones(1, 4)
        >>> (unit.log_prob(x, x) - unit.log_prob(0 * x, x)).item()
        2.0
    """

    log_std: float = -0.602

    def __post_init__(self) -> None:
        """Check the argument."""
        if not is_number(self.log_std) or not math.isfinite(self.log_std):
            raise ValueError(
                f"log_std must be a finite number, got {self.log_std!r}; it is a logarithm, "
                "zero for errors of size one"
            )

    def mean(self, means: Tensor) -> Tensor:
        """Means of pixels, ``(N, *event)``."""
        return means

    def log_prob(self, means: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, ``(N, *event) -> (N,)``."""
        errors = (x - means) * math.exp(-self.log_std)
        constant = self.log_std + 0.5 * math.log(2 * math.pi)
        return -(0.5 * errors.square() + constant).flatten(1).sum(1)

    def sample(self, means: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw pixels, ``(N, *event)``."""
        eps = torch.randn(means.shape, generator=generator, dtype=means.dtype, device=means.device)
        return means + math.exp(self.log_std) * eps


Observation = BernoulliPixels | NormalPixels

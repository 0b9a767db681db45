"""Laws of data given what a decoder says of them.

A law is told the decoder's output for every point. Outputs may have axes in front of those of the
points, for many latents of each: ``output: (*C, N, *event), x: (N, *event) -> (*C, N)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching._checks import is_number


class Observation(Protocol):
    """The law of a point given the decoder's output."""

    def mean(self, output: Tensor) -> Tensor:
        """The mean of x, of the shape of the output."""

    def log_prob(self, output: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, ``(*C, N, *event), (N, *event) -> (*C, N)``."""

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw a point for every output, of its shape."""


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

    def mean(self, output: Tensor) -> Tensor:
        """Probabilities of ones, of the shape of the logits."""
        return output.sigmoid()

    def log_prob(self, output: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, ``(*C, N, *event), (N, *event) -> (*C, N)``."""
        # Two sums read the logits once more than one, but write less. At 40 log(1 + e^l) is l to
        # the last digit, which torch would assume from 20 on.
        return _total(x * output, x) - _total(F.softplus(output, threshold=40), x)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw zeros and ones, of the shape of the logits."""
        return torch.bernoulli(self.mean(output), generator=generator)


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

    def mean(self, output: Tensor) -> Tensor:
        """Means of pixels, which the output is."""
        return output

    def log_prob(self, output: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, ``(*C, N, *event), (N, *event) -> (*C, N)``."""
        errors = (x - output) * math.exp(-self.log_std)
        constant = x.shape[1:].numel() * (self.log_std + 0.5 * math.log(2 * math.pi))
        return -0.5 * _total(errors.square(), x) - constant

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw pixels, of the shape of the means."""
        eps = torch.randn(
            output.shape, generator=generator, dtype=output.dtype, device=output.device
        )
        return output + math.exp(self.log_std) * eps


def _total(values: Tensor, x: Tensor) -> Tensor:
    """The sum over the axes of a point, ``(*C, N, *event) -> (*C, N)``."""
    return values.reshape(*values.shape[: values.ndim - x.ndim + 1], -1).sum(-1)

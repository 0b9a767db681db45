"""Distributions of data given the output of a decoder.

Outputs may have axes in front of those of the points, for many latents of each:
``output: (*C, N, *event), x: (N, *event) -> (*C, N)``.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from scorematching._checks import can_read_values, is_number
from scorematching._random import normal
from scorematching._shapes import dimension
from scorematching._tracing import is_transformed
from scorematching.distributions.gaussian import standard_normal_log_density


class Observation(Protocol):
    """The distribution of a point given the decoder's output."""

    def mean(self, output: Tensor) -> Tensor:
        """The mean of x, of the shape of the output."""

    def log_prob(self, output: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, ``(*C, N, *event), (N, *event) -> (*C, N)``."""

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw a point for every output, of its shape."""


def check_observation(value: Any) -> None:
    """Require the distribution of a point given the decoder's output."""
    methods = ("mean", "log_prob", "sample")
    if isinstance(value, type) or not all(hasattr(value, name) for name in methods):
        raise TypeError(
            f"observation must be a distribution of pixels, got {value!r}; pass BernoulliPixels() "
            "for pixels from 0 to 1, NormalPixels() for others"
        )


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
        _check_unit(x)
        # Two sums read the logits twice but write less. From 40 on, log(1 + e^l) equals l in
        # double precision; torch's own threshold is 20.
        return _flat(x * output, x).sum(-1) - _flat(F.softplus(output, threshold=40), x).sum(-1)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw zeros and ones, of the shape of the logits."""
        return torch.bernoulli(self.mean(output), generator=generator)


def _check_unit(x: Tensor) -> None:
    """Require pixels from 0 to 1, where values can be read without waiting for a GPU.

    Other values have no probability: a decoder would raise their "likelihood" without bound.
    """
    if x.is_cuda or is_transformed() or not can_read_values(x):
        return
    low, high = (end.item() for end in x.detach().aminmax())
    if low < -1e-3 or high > 1 + 1e-3:
        raise ValueError(
            f"x must hold pixels from 0 to 1 for BernoulliPixels, got values from {low:g} to "
            f"{high:g}; divide grey levels by 255, map [-1, 1] by (x + 1) / 2, or use NormalPixels"
        )


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
        if not is_number(self.log_std) or not math.isfinite(self.log_std):
            raise ValueError(
                f"log_std must be a finite number, got {self.log_std!r}; it is a logarithm, "
                "zero for errors of size one"
            )

    def mean(self, output: Tensor) -> Tensor:
        """Means of pixels: the output itself."""
        return output

    def log_prob(self, output: Tensor, x: Tensor) -> Tensor:
        """``log p(x | z)``, ``(*C, N, *event), (N, *event) -> (*C, N)``."""
        errors = (x - output) * math.exp(-self.log_std)
        return standard_normal_log_density(_flat(errors, x)) - dimension(x) * self.log_std

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw pixels, of the shape of the means."""
        return output + math.exp(self.log_std) * normal(output.shape, output, generator)


def _flat(values: Tensor, x: Tensor) -> Tensor:
    """One axis for those of a point, ``(*C, N, *event) -> (*C, N, D)``."""
    return values.reshape(*values.shape[: values.ndim - x.ndim + 1], -1)

"""Types that the other modules share."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

LogDensity = Callable[[Tensor], Tensor]
"""An (unnormalised) log-density, ``x: (N, *event) -> (N,)``, or features ``(N, *F)``."""

Vector = Callable[[Tensor], Tensor]
"""A vector field such as a score network, ``x: (N, *event) -> (N, *event)``."""


class Terms(NamedTuple):
    """The two halves of a score-matching loss, ``0.5 * first.square().sum(-1) + second``.

    Both are linear in the field, which is why one closed-form solver serves every objective that
    is written this way.

    Attributes:
        first: the squared term, ``(N, *F, K)``: the score (K = D) or its projections (K = M).
        second: the linear term, ``(N, *F)``: a divergence, a curvature or a product with noise.

    Example:
        >>> import torch
        >>> first, second = Terms(torch.ones(1, 2), torch.zeros(1))
        >>> (0.5 * first.square().sum(-1) + second).item()
        1.0
    """

    first: Tensor
    second: Tensor

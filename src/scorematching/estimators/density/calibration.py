"""The size of the tilt, by held-out likelihood; zero, the base alone, is allowed."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_SIZES = 41
_MAX_SIZE = 2.0


class Size(NamedTuple):
    """The chosen size.

    Attributes:
        size: a in ``log p = log q0 + a t - log Z(a)``.
        gain: mean held-out log-likelihood over that of the base.
        error: its standard error, over the held-out points and the samples of the base.
    """

    size: float
    gain: float
    error: float


def calibrate(tilt: Tensor, tilt_of_base: Tensor, log_weights: Tensor | None = None) -> Size:
    """The size of largest held-out likelihood, or zero where its gain is within two errors.

    Score matching compares slopes, and may misjudge how much mass lies where; likelihood measures
    that directly. ``L(a) = a mean t(held-out) - log mean exp(a t(base))`` is concave in a, with t
    given at held-out points ``(N,)`` and at samples of the base ``(M,)``; samples of another
    distribution have the log-weights ``(M,)`` of the base over it.

    Example:
        The base N(0, 1), points from N(1, 1), and a tilt that is too small by half.

        >>> x = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> round(calibrate(0.5 * (x + 1), 0.5 * x).size)
        2
    """
    sizes = torch.linspace(0, _MAX_SIZE, _SIZES, dtype=tilt.dtype, device=tilt.device)
    own = torch.zeros_like(tilt_of_base) if log_weights is None else log_weights
    log_z = (sizes[:, None] * tilt_of_base + own).logsumexp(1) - math.log(len(tilt_of_base))
    gains = sizes * tilt.mean() - log_z
    best = int(gains.nan_to_num(-torch.inf).argmax())
    size, gain = sizes[best].item(), gains[best].item()
    spread = (size * tilt).std().item() / len(tilt) ** 0.5 if len(tilt) > 1 else math.inf
    weights = (size * tilt_of_base + own - log_z[best]).exp()
    error = math.hypot(spread, weights.std().item() / len(weights) ** 0.5)
    return Size(size, gain, error) if gain > 2 * error else Size(0.0, 0.0, error)

"""Monotonic rational-quadratic splines, the maps of single columns in spline flows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Transform, constraints

_BOUND, _MIN_SLOPE = 5.0, 1e-3


class Spline(Transform):
    """The function of zuko's ``MonotonicRQSTransform``, with the knots along the first axis.

    A softmax over a last axis of eight entries takes most of the time of a spline flow on a CPU;
    over a first axis it is twenty times faster.

    Args:
        gaps: free parameters of the widths and heights of K bins, ``(*, 2, K)``.
        slopes: of the slopes at inner knots, ``(*, K - 1)``.

    Reference: Durkan, Bekasov, Murray and Papamakarios (2019), Neural spline flows.

    Example:
        >>> spline = Spline(torch.zeros(1, 2, 4), torch.zeros(1, 3))
        >>> y, x = spline(torch.tensor([2.0])), spline.inv(torch.tensor([7.0]))
        >>> y.round(decimals=4), x.round(decimals=4)
        (tensor([2.]), tensor([7.]))
    """

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = +1

    def __init__(self, gaps: Tensor, slopes: Tensor) -> None:
        """Compute the knots and keep the free parameters of slopes, ``(K + 1, *)``."""
        super().__init__()
        self.x, self.y = _knots(gaps.movedim(-2, 0)).unbind(1)
        self.slopes = F.pad(slopes.movedim(-1, 0), [0, 0] * (slopes.ndim - 1) + [1, 1])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values, and logarithms of the slopes there."""
        inside, x0, width, y0, height, d0, d1 = self._piece(x)
        z = torch.where(inside, (x - x0) / width, 0.0)
        slope, parabola = height / width, z * (1 - z)
        below = slope + (d0 + d1 - 2 * slope) * parabola
        y = y0 + height * (slope * z.square() + d0 * parabola) / below
        above = 2 * slope * parabola + d0 * (1 - z).square() + d1 * z.square()
        log_slope = 2 * (slope / below).log() + above.log()
        return torch.where(inside, y, x), torch.where(inside, log_slope, 0.0)

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        inside, x0, width, y0, height, d0, d1 = self._piece(y, inverse=True)
        rise = torch.where(inside, y - y0, 0.0)
        slope = height / width
        bend = rise * (d0 + d1 - 2 * slope)
        # The root in [0, 1] of a z^2 + b z + c.
        a, b, c = height * (slope - d0) + bend, height * d0 - bend, -slope * rise
        z = -2 * c / (b + (b.square() - 4 * a * c).clamp(min=0).sqrt())
        return torch.where(inside, x0 + z * width, y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Logarithms of the slopes at x."""
        return self.call_and_ladj(x)[1]

    def _piece(self, value: Tensor, inverse: bool = False) -> tuple[Tensor, ...]:
        """The piece around each value, between the knots (x0, y0) and (x1, y1).

        Returns whether the value is between the outermost knots (the map is the identity outside),
        x0, ``x1 - x0``, y0, ``y1 - y0``, and the slopes at both knots.
        """
        parts = [_expanded(v, value) for v in (self.x, self.y, self.slopes)]
        knots = parts[1 if inverse else 0]
        k = (knots < value).sum(0) - 1
        inside = (k >= 0) & (k < len(knots) - 1)
        k = k.clamp(0, len(knots) - 2)
        ends = torch.stack([k, k + 1])
        (x0, x1), (y0, y1), free = (part.gather(0, ends) for part in parts)
        d0, d1 = _bounded(free, 1.0).exp()
        return inside, x0, x1 - x0, y0, y1 - y0, d0, d1


def _expanded(knots: Tensor, value: Tensor) -> Tensor:
    """Knots for every value: ``(K + 1, *) -> (K + 1, *value.shape)``."""
    missing = [1] * (value.ndim - knots.ndim + 1)
    return knots.reshape(len(knots), *missing, *knots.shape[1:]).expand(-1, *value.shape)


def _knots(free: Tensor) -> Tensor:
    """Knots from -5 to 5 with gaps from free parameters, ``(*, K) -> (K + 1, *)``."""
    gaps = _bounded(free.movedim(-1, 0).contiguous(), 2.0).softmax(0)
    count = len(gaps)
    # Sums of the first gaps as a product with a matrix of ones below the diagonal.
    below = torch.ones(count + 1, count, dtype=gaps.dtype, device=gaps.device).tril(-1)
    knots = torch.mm(2 * _BOUND * below, gaps.flatten(1)) - _BOUND
    return knots.unflatten(1, gaps.shape[1:])


def _bounded(free: Tensor, factor: float) -> Tensor:
    """Parameters kept between ``+-log(1000) / factor``."""
    return free / (1 + (factor / math.log(_MIN_SLOPE) * free).abs())

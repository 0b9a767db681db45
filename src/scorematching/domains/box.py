"""Boxes and the positive orthant: one weight for each coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching.domains.base import Region, spread
from scorematching.domains.weights import Weight, check_weight, gradient, weight_function

Bound = float | tuple[float, ...]


@dataclass(frozen=True)
class Box(Region):
    """Coordinates between bounds: ``lower_j < x_j < upper_j``.

    The weight of coordinate j is ``h_j = h(min(x_j - lower_j, upper_j - x_j))``, so that
    ``first_j = sqrt(h_j) s_j`` and ``second = sum_j d/dx_j (h_j s_j)``. A coordinate without
    bounds has weight one. Points on a bound are accepted: they have weight zero there.

    Args:
        lower: one number, or one for each coordinate; minus infinity for none.
        upper: the same, above lower.
        h: of the distance to the nearer bound, see `weight_function`. The cap c belongs on the
            scale of the data: beyond c the weight is constant.

    Reference: Hyvarinen (2007); Yu, Drton and Shojaie (2019), Generalized score matching for
    non-negative data.

    Example:
        >>> from scorematching import ScoreMatching
        >>> loss = ScoreMatching(domain=Box(0.0, 1.0))
        >>> loss(lambda x: x.sum(-1), torch.tensor([[0.25]])).item()  # 0.5 h + h'
        1.125
    """

    lower: Bound = -math.inf
    upper: Bound = math.inf
    h: str | Weight = "min(x, 1)"

    def __post_init__(self) -> None:
        """Check the arguments, and keep bounds as numbers that can be compared."""
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _bound(getattr(self, name), name))
        low, high = (torch.as_tensor(b, dtype=torch.float64) for b in (self.lower, self.upper))
        if low.ndim and high.ndim and low.shape != high.shape:
            raise ValueError(
                f"lower and upper must have as many numbers as each other, got {len(low)} and "
                f"{len(high)}; give one for each coordinate, or one for all"
            )
        if not bool((low < high).all()):
            raise ValueError(
                f"lower must be below upper, got {self.lower} and {self.upper}; exchange them"
            )
        check_weight(self.h)

    def depth(self, x: Tensor) -> Tensor:
        """Distance to the nearest bound, ``(N,)``; negative outside."""
        return self.distances(x).flatten(1).amin(1)

    def weigh(self, x: Tensor, y: Tensor) -> Tensor:
        """``sqrt(h_j) y_j``."""
        return y * spread(self._weight(x).sqrt(), y)

    def drift(self, x: Tensor) -> Tensor:
        """``dh_j / dx_j``."""
        return gradient(self._weight, x)[1]

    def _weight(self, x: Tensor) -> Tensor:
        distance = self.distances(x)
        free = distance.isinf()
        # The inner where keeps infinities away from h, whose derivative there would be NaN.
        h = weight_function(self.h)(torch.where(free, torch.ones_like(distance), distance))
        return torch.where(free, torch.ones_like(h), h)

    def distances(self, x: Tensor) -> Tensor:
        """Distance of every coordinate to its nearer bound, ``(N, *event)``."""
        lower, upper = (_like(bound, x) for bound in (self.lower, self.upper))
        return torch.minimum(x - lower, upper - x)


@dataclass(frozen=True)
class PositiveOrthant(Box):
    """Positive coordinates, ``x_j > 0``, with weights ``h_j = h(x_j)``.

    Args:
        h: see `Box`.

    Example:
        >>> from scorematching import ScoreMatching
        >>> loss = ScoreMatching(domain=PositiveOrthant(h="min(log(1+x), 2)"))
        >>> round(loss(lambda x: -x.sum(-1), torch.ones(1, 1)).item(), 4)  # 0.5 log 2 - 1 / 2
        -0.1534
    """

    lower: Bound = 0.0
    upper: Bound = math.inf

    def __init__(self, h: str | Weight = "min(x, 1)") -> None:
        """Keep the weight."""
        object.__setattr__(self, "h", h)
        self.__post_init__()

    def __repr__(self) -> str:
        return f"PositiveOrthant(h={self.h!r})"


def _bound(value: Any, name: str) -> Bound:
    try:
        found = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be a number or one number for each coordinate, got {value!r}"
        ) from error
    if found.ndim > 1 or bool(found.isnan().any()):
        raise ValueError(
            f"{name} must be a number or one number for each coordinate, got {value!r}; use "
            "infinity for no bound"
        )
    return tuple(found.tolist()) if found.ndim else float(found)


def _like(bound: Bound, x: Tensor) -> Tensor:
    """A bound for points of any event."""
    found = torch.as_tensor(bound, dtype=x.dtype, device=x.device)
    if not found.ndim:
        return found
    if found.numel() != x[0].numel():
        raise ValueError(
            f"bounds must be one number or one for each of the {x[0].numel()} coordinates of x, "
            f"got {found.numel()}; give as many as x has columns"
        )
    return found.reshape(x.shape[1:])

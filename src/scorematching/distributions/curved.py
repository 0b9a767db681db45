"""Distributions that are difficult for samplers and estimators: banana, funnel and ring."""

import math
from statistics import NormalDist

import torch
from torch import Tensor

from scorematching._checks import check_positive
from scorematching.distributions.base import Distribution, check_dim
from scorematching.distributions.gaussian import standard_normal_log_density


class Banana(Distribution):
    """A normal distribution curved along a parabola, without a change of volume.

    ``x1 ~ N(0, scale^2)``, ``x2 = z + curvature (x1^2 - scale^2)`` with z and all further
    coordinates standard normal. With ``z = x2 - curvature (x1^2 - scale^2)``::

        log p(x) = log N(x1; 0, scale^2) + log N(z; 0, 1) + ...
        score(x) = (-x1 / scale^2 + 2 curvature x1 z,  -z,  -x3, ...)

    The mean is zero and the coordinates are uncorrelated; Var x2 = 1 + 2 curvature^2 scale^4.

    Args:
        dim: D, at least 2.
        curvature: any number; 0 is a Gaussian.
        scale: standard deviation of x1.

    Example:
        >>> p = Banana(curvature=0.5)
        >>> p.score(torch.tensor([[2.0, 1.5]])).tolist()
        [[-2.0, -0.0]]
    """

    def __init__(self, dim: int = 2, curvature: float = 0.5, scale: float = 1.0) -> None:
        check_dim(dim, "Banana", 2)
        if not math.isfinite(curvature):
            raise ValueError(f"curvature must be finite, got {curvature}; 0.5 is mild")
        check_positive(scale, "scale", "it is a standard deviation")
        super().__init__(dim)
        self.curvature = curvature
        self.scale = scale

    def _shift(self, x1: Tensor) -> Tensor:
        return self.curvature * (x1.square() - self.scale**2)

    def _straighten(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First coordinate, second coordinate without its shift, and the rest."""
        x1, x2, rest = x[:, :1], x[:, 1:2], x[:, 2:]
        return x1, x2 - self._shift(x1), rest

    def _log_density(self, x: Tensor) -> Tensor:
        x1, z, rest = self._straighten(x)
        straight = torch.cat([x1 / self.scale, z, rest], -1)
        return standard_normal_log_density(straight) - math.log(self.scale)

    def _score(self, x: Tensor) -> Tensor:
        x1, z, rest = self._straighten(x)
        first = -x1 / self.scale**2 + 2 * self.curvature * x1 * z
        return torch.cat([first, -z, -rest], -1)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        z = self._normal((n, self.dim), generator)
        x1 = self.scale * z[:, :1]
        return torch.cat([x1, z[:, 1:2] + self._shift(x1), z[:, 2:]], -1)


class Funnel(Distribution):
    """Neal's funnel: the first coordinate sets the variance of all others.

    ``x1 ~ N(0, scale^2)`` and ``x_i | x1 ~ N(0, exp(x1))`` for i > 1::

        score(x) = (-x1 / scale^2 + (exp(-x1) sum_i x_i^2 - (D - 1)) / 2,  -exp(-x1) x_i)

    Args:
        dim: D, at least 2.
        scale: standard deviation of x1.

    Reference:
        Neal (2003), Slice sampling, section 8.

    Example:
        Where x1 = 0 the other coordinates are standard normal.

        >>> p = Funnel(dim=3)
        >>> p.score(torch.tensor([[0.0, 1.0, 1.0]])).tolist()
        [[0.0, -1.0, -1.0]]
    """

    def __init__(self, dim: int = 2, scale: float = 3.0) -> None:
        check_dim(dim, "Funnel", 2)
        check_positive(scale, "scale", "Neal's funnel has 3.0")
        super().__init__(dim)
        self.scale = scale

    def _log_density(self, x: Tensor) -> Tensor:
        x1, rest = x[:, :1], x[:, 1:]
        z = torch.cat([x1 / self.scale, rest * (-x1 / 2).exp()], -1)
        log_volume = math.log(self.scale) + (self.dim - 1) / 2 * x1.squeeze(-1)
        return standard_normal_log_density(z) - log_volume

    def _score(self, x: Tensor) -> Tensor:
        x1, rest = x[:, :1], x[:, 1:]
        precision = (-x1).exp()
        energy = (precision * rest.square()).sum(-1, keepdim=True)
        first = -x1 / self.scale**2 + (energy - (self.dim - 1)) / 2
        return torch.cat([first, -precision * rest], -1)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        z = self._normal((n, self.dim), generator)
        x1 = self.scale * z[:, :1]
        return torch.cat([x1, z[:, 1:] * (x1 / 2).exp()], -1)


class Ring(Distribution):
    """A ridge around a circle in the first two coordinates, the others standard normal.

    With ``r^2 = x1^2 + x2^2`` and ``t = 2 radius width``::

        log p(x1, x2) = -(r^2 - radius^2)^2 / (2 t^2) - log Z
        Z             = pi t sqrt(2 pi) Phi(radius^2 / t)
        score(x1, x2) = -2 (r^2 - radius^2) (x1, x2) / t^2

    A ridge in r^2 instead of r has a log-density that is a polynomial, so it is smooth at the
    centre too. Since ``dx1 dx2 = d(r^2) d(angle) / 2``, r^2 is normal with mean radius^2 and
    standard deviation t, restricted to positive values, and the angle is uniform; for a narrow
    ring r has standard deviation ``width``.

    Args:
        radius: where the density is highest.
        width: standard deviation of the distance from the centre, for width << radius.
        dim: D, at least 2.

    Example:
        The score is zero all around the ridge.

        >>> p = Ring(radius=5.0, width=0.25)
        >>> p.score(torch.tensor([[3.0, 4.0], [-5.0, 0.0]])).abs().max().item()
        0.0
    """

    def __init__(self, radius: float = 2.0, width: float = 0.25, dim: int = 2) -> None:
        check_positive(radius, "radius", "for a bump at the centre use Gaussian")
        check_positive(width, "width", "a tenth of the radius is a thin ring")
        check_dim(dim, "Ring", 2)
        super().__init__(dim)
        self.radius = radius
        self.width = width
        self._spread = 2 * radius * width

    def _excess(self, plane: Tensor) -> Tensor:
        """``(r^2 - radius^2) / t``, ``(N, 2) -> (N, 1)``."""
        return (plane.square().sum(-1, keepdim=True) - self.radius**2) / self._spread

    def _log_density(self, x: Tensor) -> Tensor:
        plane, rest = x[:, :2], x[:, 2:]
        volume = math.pi * self._spread * NormalDist().cdf(self.radius**2 / self._spread)
        z = torch.cat([self._excess(plane), rest], -1)
        return standard_normal_log_density(z) - math.log(volume)

    def _score(self, x: Tensor) -> Tensor:
        plane, rest = x[:, :2], x[:, 2:]
        return torch.cat([-2 / self._spread * self._excess(plane) * plane, -rest], -1)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        excess = self._normal((n, 1), generator)
        lowest = -(self.radius**2) / self._spread
        # Rejection sampling: at least half of all draws are accepted.
        while bool((excess < lowest).any()):
            again = self._normal((n, 1), generator)
            excess = torch.where(excess < lowest, again, excess)
        r = (self.radius**2 + self._spread * excess).clamp(min=0).sqrt()
        angle = 2 * math.pi * self._uniform((n, 1), generator)
        rest = self._normal((n, self.dim - 2), generator)
        return torch.cat([r * angle.cos(), r * angle.sin(), rest], -1)

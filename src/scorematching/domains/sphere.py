"""The unit sphere, and the simplex through square roots on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from scorematching._checks import check_positive, torch_numbers
from scorematching._shapes import dimension, event_axes, inner
from scorematching.domains.base import DomainField, Region, refuse_rows, spread
from scorematching.domains.weights import Weight, capped, gradient
from scorematching.fields import Field, directions

TOLERANCE = 1e-6
"""How far lengths and sums may be from one, in float64; in other types a few units of rounding."""


@dataclass(frozen=True)
class Sphere(Region):
    """Points of length one, with the tangential projection and the Laplace-Beltrami operator.

    The score is projected to the tangent space, ``P = I - x x'``, and the divergence is that on
    the sphere: ``first = sqrt(h) P s`` and
    ``second = h (tr(P (grad s) P) - (D - 1) x.s) + (P grad h).s``. The log-density may be any
    smooth function near the sphere: how it continues outside does not matter.

    Args:
        h: "ones" for the whole sphere; "minsq", ``min(x_1^2, ..., x_D^2, cap^2)``, or "prodsq",
            ``min(x_1^2 ... x_D^2, cap^2)``, for densities on its positive orthant; or a function
            ``(N, *event) -> (N,)``.
        cap: of the weights with a boundary.

    Reference: Mardia, Kent and Laha (2016), Score matching estimators for directional
    distributions; Scealy and Wood (2023) for the weights.

    Example:
        The uniform distribution has no score; a von Mises-Fisher one points to its mean.

        >>> from scorematching import ScoreMatching
        >>> x = torch.tensor([[1.0, 0.0, 0.0]])
        >>> ScoreMatching(domain=Sphere())(lambda x: 4 * x[:, 0], x).item()  # -2 * 4
        -8.0
    """

    h: str | Weight = "ones"
    cap: float = 1.0
    names: ClassVar[tuple[str, ...]] = ("ones", "minsq", "prodsq")

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_positive(self.cap, "cap", "0.01 suits proportions with zeros, 1 most others")
        if not callable(self.h) and self.h not in self.names:
            raise ValueError(
                f"h must be one of {', '.join(self.names)}, or a function (N, *event) -> (N,), got "
                f"{self.h!r}"
            )

    def coordinates(self, x: Tensor) -> Tensor:
        """Where points lie on the sphere."""
        return x

    def check(self, x: Tensor) -> None:
        """Refuse points that are not on the sphere, or where a weight has its boundary."""
        error = (x.flatten(1).norm(dim=1) - 1).abs()
        refuse_rows(~(error <= _tolerance(x)), f"x must lie on {self}", "divide x by its length")
        super().check(x)

    def depth(self, x: Tensor) -> Tensor:
        """The least coordinate where the weight has a boundary; infinity on the whole sphere."""
        if self.h in ("minsq", "prodsq"):
            return self.coordinates(x).flatten(1).amin(1)
        return torch.full(x.shape[:1], torch.inf, dtype=x.dtype, device=x.device)

    def weigh(self, x: Tensor, y: Tensor) -> Tensor:
        """``sqrt(h) P y``."""
        z = self.coordinates(x)
        root = self._weight(z).sqrt().reshape(-1, *[1] * (y.ndim - 1))
        return root * _tangential(z, y)

    def drift(self, x: Tensor) -> Tensor:
        """``P grad h - (D - 1) h x``."""
        z = self.coordinates(x)
        h = self._weight(z).reshape(-1, *[1] * event_axes(x))
        return self.slope(x) - (dimension(x) - 1) * h * z

    def slope(self, x: Tensor) -> Tensor:
        """``P grad h``, zero where the weight is constant."""
        z = self.coordinates(x)
        return _tangential(z, gradient(self._weight, z)[1])

    def _weight(self, z: Tensor) -> Tensor:
        if callable(self.h):
            return self.h(z)
        return WEIGHTS[self.h](z.flatten(1).square(), self.cap**2)


WEIGHTS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "ones": lambda squares, cap: torch.ones_like(squares[:, 0]),
    # amin has slopes in all coordinates that share the least value; min would take the first one.
    "minsq": lambda squares, cap: capped(squares.amin(1), cap),
    "prodsq": lambda squares, cap: capped(squares.prod(1), cap),
}


@dataclass(frozen=True)
class Simplex(Sphere):
    """Proportions: ``x_j > 0`` with sum one.

    Points are mapped to ``z = sqrt(x)`` on the positive orthant of the sphere, where the density
    gains the factor ``z_1 ... z_D``, and are matched there. The log-density is that of x on the
    simplex (with respect to area, as for a Dirichlet distribution), written as any smooth function
    of all D proportions.

    Proportions of zero have an infinite score; `interior` moves them inside.

    Args:
        h: "minsq", "prodsq" or "ones", or a function of z, see `Sphere`. With "ones" estimates are
            biased unless the density falls fast at the boundary, as for Dirichlet parameters above
            one, and have standard errors for parameters above two only: `inference.fit` refuses
            points that come nearer.
        cap: of the weights.

    Reference: Scealy and Wood (2023), Score matching for compositional distributions.

    Example:
        >>> from scorematching import ScoreMatching
        >>> x = torch.tensor([[0.5, 0.3, 0.2]])
        >>> dirichlet = lambda x: (torch.tensor([1.0, 2.0, 0.5]) * x.log()).sum(-1)
        >>> ScoreMatching(domain=Simplex())(dirichlet, x).shape
        torch.Size([1])
    """

    h: str | Weight = "minsq"

    def coordinates(self, x: Tensor) -> Tensor:
        """``sqrt(x)``, on the sphere."""
        return x.sqrt()

    def check(self, x: Tensor) -> None:
        """Refuse points that are not proportions, or have zeros."""
        flat = x.flatten(1)
        bad = ~((flat.sum(1) - 1).abs() <= _tolerance(x)) | (flat < 0).any(1)
        refuse_rows(bad, f"x must lie in {self}", "divide proportions by their sum")
        refuse_rows(
            (flat == 0).any(1), "x must have no proportion of zero", "use Simplex.interior(x)"
        )

    def wrap(self, field: Field) -> Field:
        """The field on the sphere, with its weight."""
        return DomainField(SquareRootField(field), self)

    @staticmethod
    def interior(x: Any, by: float = 1e-10) -> Tensor:
        """Points whose zeros are moved inside: square roots below ``by`` become ``by``.

        The weights "minsq" and "prodsq" make the loss continuous there, so that the result hardly
        depends on ``by``. Sums change by less than rounding.

        Args:
            x: proportions ``(N, D)``: a tensor, an array or a data frame.
            by: the least square root.
        """
        if not isinstance(x, Tensor):
            x = torch.as_tensor(torch_numbers(x, "x"), dtype=torch.float64)
        return x.clamp_min(by**2)


class SquareRootField(Field):
    """The field of ``z = sqrt(x)`` for a field of proportions x, asked at x.

    With ``log q(z) = log p(z^2) + sum_j log z_j`` the score is ``2 z s + 1 / z``, and its
    derivative along v is ``(2zv)' (grad s) (2zv) + sum_j v_j^2 (2 s_j - 1 / z_j^2)``.

    Args:
        base: the field in proportions; one log-density, without features.
    """

    def __init__(self, base: Field) -> None:
        """Keep the field."""
        self.base = base
        self.model = base.model

    def given(self, *conditions: Any) -> Field:
        """The field of a model with further arguments."""
        return SquareRootField(self.base.given(*conditions))

    def score(self, x: Tensor) -> Tensor:
        """``2 z s + 1 / z``, ``(N, *event)``."""
        return self._pull_back(x, self.base.score(x))

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The score in z, and its mean derivative along directions v in z."""
        v = directions(v, x)
        s, curvature = self.base.score_and_curvature(x, 2 * x.sqrt() * v)
        score = self._pull_back(x, s)
        more = inner(v.square().mean(0), 2 * s - 1 / x, event_axes(x))
        return score, curvature + more

    def slice_by_differences(self, x: Tensor, v: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """Not on a domain, see `DomainField`."""
        raise TypeError("a domain needs derivatives, got an objective by finite differences")

    def _pull_back(self, x: Tensor, s: Tensor) -> Tensor:
        if s.ndim > x.ndim:
            raise ValueError(
                "on the simplex a field must be one log-density, got features, for which the "
                "factor of the map to the sphere would count once for each of them"
            )
        return 2 * x.sqrt() * s + 1 / x.sqrt()


def _tangential(z: Tensor, y: Tensor) -> Tensor:
    """``y - z (z.y)`` for vectors ``(N, *F, *event)``."""
    axes = event_axes(z)
    radial = inner(spread(z, y), y, axes).reshape(*y.shape[: y.ndim - axes], *[1] * axes)
    return y - radial * spread(z, y)


def _tolerance(x: Tensor) -> float:
    return max(TOLERANCE, 32 * torch.finfo(x.dtype).eps)

"""Sliced score matching, plain and with variance reduction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any, ClassVar

import torch
from torch import Tensor

from scorematching._checks import check_count, is_number
from scorematching._directions import of_points
from scorematching._shapes import event_axes, flatten_event, project
from scorematching.domains.base import Region, check_domain, restrict
from scorematching.fields import Field, directions
from scorematching.objectives.base import Objective, law
from scorematching.projections import Projection, Rademacher, SplitRademacher
from scorematching.types import Terms


@dataclass(frozen=True)
class Sliced(Objective):
    """The base of all objectives that use random directions.

    Args:
        projection: distribution of the directions, with ``E[v v'] = I``.
        num_projections: M, directions per point; one is usually enough.

    Attributes:
        quadratic: whether the loss is quadratic in v, so that it depends on the directions of a
            point through the mean of ``v v'`` alone.
    """

    projection: Projection = default(default_factory=Rademacher)
    num_projections: int = 1
    quadratic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.projection, Projection):
            raise TypeError(
                f"projection must be a Projection, got {self.projection!r}; "
                "use Rademacher(), Gaussian() or Sphere()"
            )
        if self.projection.quadratic_only and not self.quadratic:
            raise ValueError(
                f"projection must suit a loss that is not quadratic in v, as that of "
                f"{type(self).__name__}, got {self.projection}; use Rademacher()"
            )
        check_count(self.num_projections, "num_projections", "one per point is a good default")

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Directions ``(M, N, *event)``."""
        return self.projection.draw(x, self.num_projections, generator)

    def share(self, noise: Tensor, x: Tensor, rows: slice) -> Tensor:
        """The directions of some points, ``(M, n, *event)``."""
        return of_points(noise, rows)


@dataclass(frozen=True)
class SlicedScoreMatching(Sliced):
    """Score matching along random directions (SSM).

    ``J = v' (grad s) v + 0.5 (v.s)^2``, averaged over M directions per point; its expectation
    over v is exact score matching. Cost: one Hessian-vector product per direction.

    Args:
        projection: distribution of the directions, with ``E[v v'] = I``.
        num_projections: M, directions per point.
        domain: where the points live, such as `domains.PositiveOrthant`; None for all of R^D.

    Reference: Song et al. (2019), Eq. (5) and Algorithm 1.

    Example:
        The 2 D directions ``+-sqrt(D) e_i`` average to exact score matching.

        >>> from scorematching import LogDensityField, ScoreMatching
        >>> normal = LogDensityField(lambda x: -0.5 * x.square().sum(-1))
        >>> x = torch.randn(5, 2, dtype=torch.float64)
        >>> v = 2**0.5 * torch.eye(2, dtype=torch.float64)[:, None].expand(2, 5, 2)
        >>> sliced = SlicedScoreMatching().loss(normal, x, torch.cat([v, -v]))
        >>> torch.allclose(sliced, ScoreMatching()(normal, x))
        True
    """

    projection: Projection = default(default_factory=SplitRademacher)
    domain: Region | None = None
    quadratic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_domain(self.domain)

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        """First: projected scores over sqrt(M), ``(N, *F, M)``; second: curvature along v."""
        projected, curvature = restrict(field, self.domain).slice(x, noise)
        return Terms(projected / projected.shape[-1] ** 0.5, curvature)


@dataclass(frozen=True)
class SlicedScoreMatchingVR(Sliced):
    """Sliced score matching with variance reduction (SSM-VR), the objective to start with.

    ``J = v' (grad s) v + 0.5 |s|^2``: the square of plain SSM is replaced by its known expectation
    over v. It is the case beta = 1 of the control variate ``c = 0.5 (v.s)^2 - 0.5 |s|^2``, which
    has mean zero whatever the field: ``J_beta = J_SSM - beta c``, and beta = 0 is plain SSM.

    With ``beta="optimal"`` the batch is cut in two halves with independent directions, and the
    coefficient of least variance for one half is estimated on the other, so that it is
    independent of the directions it multiplies and the expectation stays exact. Processes that
    train together estimate it on their own points each.

    Args:
        projection: distribution of the directions, with ``E[v v'] = I``.
        num_projections: M, directions per point.
        beta: coefficient of the control variate, or ``"optimal"``.
        domain: where the points live, such as `domains.PositiveOrthant`; None for all of R^D.

    Reference: Song et al. (2019), Section 3.1 and Appendix D.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> SlicedScoreMatchingVR()(normal, torch.ones(1, 3)).item()  # 0.5 * 3 - 3, whatever v
        -1.5
    """

    projection: Projection = default(default_factory=SplitRademacher)
    beta: float | str = 1.0
    domain: Region | None = None
    quadratic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_domain(self.domain)
        finite = is_number(self.beta) and math.isfinite(float(self.beta))
        if self.beta != "optimal" and not finite:
            raise ValueError(
                f'beta must be a finite number or "optimal", got {self.beta!r}; '
                "1.0 is variance reduction and 0.0 plain sliced score matching"
            )

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Directions ``(M, N, *event)``; independent in the two halves where beta is estimated."""
        if self.beta != "optimal" or x.shape[0] == 1:
            return super().draw(x, generator)
        halves = _halves(x)
        return torch.cat([super(SlicedScoreMatchingVR, self).draw(h, generator) for h in halves], 1)

    def share(self, noise: Tensor, x: Tensor, rows: slice) -> Tensor:
        """The directions of some points, whose halves must be independent where beta is estimated.

        Raises:
            ValueError: if a half of these points has points of both halves of the batch.
        """
        n, mine = len(x), range(len(x))[rows]
        middle = len(mine) // 2
        mixed = [i for k, i in enumerate(mine) if (i < n // 2) != (k < middle)]
        if self.beta == "optimal" and mixed:
            raise ValueError(
                'batch_size must be a multiple of twice the number of shares for beta="optimal", '
                f"got {n} for {len(mine)} points in this share; change batch_size"
            )
        return super().share(noise, x, rows)

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        """First: the score ``(N, *F, D)``; second: curvature along v; those of beta = 1."""
        score, curvature = restrict(field, self.domain).score_and_curvature(x, noise)
        return Terms(flatten_event(score, event_axes(x)), curvature)

    def loss(self, field: Field, x: Tensor, noise: Tensor) -> Tensor:
        """The loss of every point, ``(N,)``, at the chosen beta."""
        terms = self.terms(field, x, noise)
        loss = law(terms)
        if self.beta == 1:
            return loss
        control = _control_variate(terms.first, directions(noise, x))
        return loss + (1 - self._coefficient(terms.second, control)) * control

    def _coefficient(self, curvature: Tensor, control: Tensor) -> Any:
        """Beta: the given number, or for each half of the batch the other half's optimum."""
        if self.beta != "optimal":
            return self.beta
        if control.shape[0] == 1:
            return 1.0
        a, b = map(_optimal_beta, _halves(curvature.detach()), _halves(control.detach()))
        return torch.cat([h.expand(len(c)) for h, c in zip((b, a), _halves(control))])


def _control_variate(score: Tensor, v: Tensor) -> Tensor:
    """``c = mean_j 0.5 (v_j.s)^2 - 0.5 |s|^2``, which has mean zero over v: ``(N,)``."""
    projected = project(score, v.flatten(2))
    score = score.to(projected.dtype)  # which is wider under autocast
    return 0.5 * projected.square().mean(-1) - 0.5 * score.square().sum(-1)


def _optimal_beta(curvature: Tensor, control: Tensor) -> Tensor:
    """The beta of least variance, ``1 + E[(v'Hv) c] / E[c^2]``, held within [0, 2]."""
    # Products of losses leave the range of float32 for points in units of 1e10 or 1e-10.
    size = control.abs().amax()
    c = control / size
    slope = ((curvature - curvature.mean()) / size * c).sum() / c.square().sum()
    # Where c is zero (signs with D = 1, for example) every beta gives the same loss.
    return torch.where(size > 0, 1 + slope, torch.ones_like(size)).clamp(0, 2)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[: x.shape[0] // 2], x[x.shape[0] // 2 :]

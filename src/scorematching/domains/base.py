"""Score matching on a domain: the law, with a field that a domain has wrapped.

On a domain with boundary the integration by parts behind score matching leaves a boundary term. A
weight h that vanishes there removes it. With W the square root of the weight (a number, one for
each coordinate, or a projection times a number) and ``b = div(W W')``:

==============  ==========  ================================
question        first       second
==============  ==========  ================================
divergence      W s         ``tr(W (grad s) W) + b.s``
curvature       W s         ``(Wv)' (grad s) (Wv) + b.s``
slice           ``v.(Ws)``  ``(Wv)' (grad s) (Wv) + b.s``
==============  ==========  ================================

The second column is ``div(W W' s)``, or has it as its mean over v. So a domain answers for a field
with the same questions, asked along other directions, and objectives stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values, check_points, check_shape, check_type
from scorematching._shapes import dimension, event_axes, inner, project
from scorematching.domains.weights import Weight, check_weight, gradient, weight_function
from scorematching.fields import Field, directions


class Region:
    """A set of points, and how it changes the questions of a field; a subclass says which."""

    def check(self, x: Tensor) -> None:
        """Refuse points outside, by their row numbers."""
        depth = self.depth(x)
        refuse_rows(~(depth >= 0), f"x must lie in {self}", "drop or correct these rows")

    def depth(self, x: Tensor) -> Tensor:
        """Distance to the boundary, ``(N,)``; negative outside."""
        raise TypeError(f"{type(self).__name__} must say how far points are from its boundary")

    def weigh(self, x: Tensor, y: Tensor) -> Tensor:
        """``W y`` for vectors ``(N, *F, *event)``."""
        raise TypeError(f"{type(self).__name__} must say how it weighs vectors")

    def drift(self, x: Tensor) -> Tensor:
        """``b = div(W W')``, ``(N, *event)``."""
        raise TypeError(f"{type(self).__name__} must say what its weights' divergence is")

    def wrap(self, field: Field) -> Field:
        """The field that answers for this domain."""
        return DomainField(field, self)


@dataclass(frozen=True)
class Domain(Region):
    """A set whose distance to its boundary is known, with the weight ``h(distance(x))``.

    Args:
        distance: ``(N, *event) -> (N,)``, positive inside, zero on the boundary, negative outside;
            any function will do that is differentiable almost everywhere and falls to zero there.
        h: of the distance, see `weight_function`.

    Reference: Liu, Kanamori and Williams (2022); Yu, Drton and Shojaie (2022).

    Example:
        The uniform distribution on a disc has score zero and no loss.

        >>> from scorematching import ScoreMatching
        >>> disc = Domain(distance=lambda x: 1 - x.norm(dim=-1))
        >>> ScoreMatching(domain=disc)(lambda x: 0.0 * x.sum(-1), 0.1 * torch.ones(1, 2)).item()
        0.0
    """

    distance: Callable[[Tensor], Tensor]
    h: str | Weight = "min(x, 1)"

    def __post_init__(self) -> None:
        """Check the arguments."""
        wanted = "distance must be a function (N, *event) -> (N,)"
        check_type(self.distance, Callable, wanted, "for boxes use Box(lower, upper)")
        check_weight(self.h)

    def __repr__(self) -> str:
        name = getattr(self.distance, "__name__", type(self.distance).__name__)
        return f"Domain(distance={name}, h={self.h!r})"

    def depth(self, x: Tensor) -> Tensor:
        """Distance to the boundary, ``(N,)``; negative outside."""
        found = self.distance(x)
        wanted = "distance must return one number per point, shape {}"
        check_shape(found, x.shape[:1], wanted, "reduce over the event axes")
        return found

    def _weight(self, x: Tensor) -> Tensor:
        return weight_function(self.h)(self.depth(x))

    def weigh(self, x: Tensor, y: Tensor) -> Tensor:
        """``sqrt(h) y``."""
        return y * self._weight(x).sqrt().reshape(-1, *[1] * (y.ndim - 1))

    def drift(self, x: Tensor) -> Tensor:
        """``grad h``."""
        return gradient(self._weight, x)[1]


class DomainField(Field):
    """A field on a domain: weighted scores, and divergences of weighted scores.

    Args:
        base: the field in the coordinates of the points.
        domain: that weighs it.

    Example:
        On x > 0 with h = x the standard normal has ``first = -x^1.5`` and ``second = -2 x``.

        >>> from scorematching import LogDensityField
        >>> from scorematching.domains import PositiveOrthant
        >>> normal = LogDensityField(lambda x: -0.5 * x.square().sum(-1))
        >>> field = DomainField(normal, PositiveOrthant(h="min(x, 9)"))
        >>> first, second = field.score_and_divergence(torch.tensor([[4.0]]))
        >>> first.item(), second.item()
        (-8.0, -8.0)
    """

    def __init__(self, base: Field, domain: Region) -> None:
        """Keep both."""
        self.base = base
        self.domain = domain
        self.model = base.model

    def __repr__(self) -> str:
        return f"DomainField({self.base}, {self.domain})"

    def given(self, *conditions: Any) -> Field:
        """The field of a model with further arguments, on the same domain."""
        return DomainField(self.base.given(*conditions), self.domain)

    def score(self, x: Tensor) -> Tensor:
        """The weighted score ``W s``, ``(N, *F, *event)``."""
        self._check(x)
        return self.domain.weigh(x, self.base.score(x))

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """``W s``, and the mean over v of ``(Wv)' (grad s) (Wv) + b.s``."""
        s, second = self._ask(x, v)
        return self.domain.weigh(x, s), second

    def score_and_divergence(
        self, x: Tensor, max_memory: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """``W s`` and ``div(W W' s)``, by the curvature along D directions ``W e_j``."""
        self._check(x)
        d = dimension(x)
        basis = torch.eye(d, dtype=x.dtype, device=x.device).reshape(d, 1, *x.shape[1:])
        size = d if max_memory is None else max(1, max_memory // (x.numel() * x.element_size()))
        total: Any = 0.0
        for chunk in basis.split(size):
            u = self._directions(x, chunk.expand(len(chunk), *x.shape))
            s, curvature = self.base.score_and_curvature(x, u)
            total = total + len(chunk) * curvature
        return self.domain.weigh(x, s), self._finite(x, total + self._drift(x, s))

    def slice(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """``v.(W s)`` and the mean over v of ``(Wv)' (grad s) (Wv) + b.s``."""
        s, second = self._ask(x, v)
        return project(self.domain.weigh(x, s), directions(v, x)), second

    def slice_by_differences(self, x: Tensor, v: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """Not on a domain: moved points may leave it."""
        raise TypeError(
            "a domain needs derivatives, got an objective by finite differences, whose points may "
            "leave the domain; use SlicedScoreMatching"
        )

    def _ask(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self._check(x)
        s, curvature = self.base.score_and_curvature(x, self._directions(x, directions(v, x)))
        return s, self._finite(x, curvature + self._drift(x, s))

    def _directions(self, x: Tensor, v: Tensor) -> Tensor:
        """``W v`` for directions ``(M, N, *event)``."""
        return self.domain.weigh(x, v.transpose(0, 1)).transpose(0, 1)

    def _drift(self, x: Tensor, s: Tensor) -> Tensor:
        """``b.s`` for scores ``(N, *F, *event)``."""
        b = self.domain.drift(x)
        return inner(spread(b, s), s, event_axes(x))

    def _check(self, x: Tensor) -> None:
        check_points(x)
        if can_read_values(x) and not x.is_cuda:
            self.domain.check(x.detach())

    def _finite(self, x: Tensor, second: Tensor) -> Tensor:
        """The second term, refused where points on the boundary make it infinite or NaN."""
        if can_read_values(x) and not x.is_cuda and not bool(second.detach().isfinite().all()):
            edge = self.domain.depth(x.detach()) == 0
            bad = edge & ~second.detach().isfinite().reshape(len(x), -1).all(1)
            wanted = "points on the boundary must have a finite score"
            refuse_rows(bad, wanted, "move these rows into the domain")
        return second


def restrict(field: Field, domain: Region | None) -> Field:
    """The field as a domain sees it; the field itself where there is none.

    Example:
        >>> from scorematching import LogDensityField
        >>> field = LogDensityField(lambda x: -x.sum(-1))
        >>> restrict(field, None) is field
        True
    """
    check_domain(domain)
    advice = "wrap a model in LogDensityField or VectorField"
    check_type(field, Field, "field must be a Field", advice)
    return field if domain is None else domain.wrap(field)


def check_domain(domain: Any) -> None:
    """Require a domain or None."""
    if domain is not None and not isinstance(domain, Region):
        raise TypeError(
            f"domain must be a domain or None, got {domain!r}; use PositiveOrthant(), "
            "Box(lower, upper), Simplex(), Sphere() or Domain(distance) of scorematching.domains"
        )


def spread(w: Tensor, like: Tensor) -> Tensor:
    """``(N, *event)`` with axes of one for the F of vectors ``(N, *F, *event)``."""
    return w.reshape(len(w), *[1] * (like.ndim - w.ndim), *w.shape[1:])


class RowsError(ValueError):
    """Rows of points that are refused.

    Args:
        rows: their numbers.
        count: N, the number of rows.
        wanted: what was required of them.
        advice: what to do.
    """

    def __init__(self, rows: Sequence[int], count: int, wanted: str, advice: str) -> None:
        """Name the first rows."""
        self.rows, self.count, self.wanted, self.advice = tuple(rows), count, wanted, advice
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        message = f"{wanted}, got {len(rows)} of {count} rows that do not: {shown}; {advice}"
        super().__init__(message)

    def __reduce__(self) -> Any:
        return RowsError, (self.rows, self.count, self.wanted, self.advice)


@contextmanager
def rows_of_table(numbers: Tensor, count: int) -> Iterator[None]:
    """Inside, refused rows are those of a table of which ``numbers: (n,)`` are evaluated.

    Args:
        numbers: of the rows that are evaluated.
        count: N, the number of rows of the table.
    """
    try:
        yield
    except RowsError as error:
        rows = sorted(numbers[[*error.rows]].tolist())
        raise RowsError(rows, count, error.wanted, error.advice) from None


def refuse_rows(bad: Tensor, wanted: str, advice: str) -> None:
    """Raise a ValueError that names the rows where ``bad: (N,)`` is true."""
    if bool(bad.any()):
        raise RowsError(bad.nonzero()[:, 0].tolist(), len(bad), wanted, advice)

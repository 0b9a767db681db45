"""The best weights of a model that is linear in them, in closed form.

For ``log p = log q0 + alpha . phi`` both halves of a score-matching loss are linear in the field,
hence in alpha, and the mean loss is a quadratic:

    ``J(alpha) = 0.5 alpha' G alpha + b . alpha + constant``
    ``G = mean <first(phi), first(phi)>``
    ``b = mean (<first(phi), first(log q0)> + second(phi))``

so that ``alpha = -(G + lam I)^-1 b`` minimises ``J(alpha) + 0.5 lam |alpha|^2``. The same code
serves every objective with `terms`.

The layerwise baselines are included. Approximate backpropagation is linear in the weights of the
last layer. The estimate of curvature propagation is not linear in alpha, but it is unbiased, and
so is the sum of one estimate for every feature, each with its own noise, which is used here. G
does not depend on the noise, so alpha is unbiased too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import (
    can_read_values,
    check_generator,
    check_points,
    check_shape,
    check_type,
    is_number,
)
from scorematching._precision import at_least_single, without_autocast
from scorematching.derivatives import routes
from scorematching.fields import LogDensityField, answer, directions
from scorematching.objectives import Objective, SlicedScoreMatchingVR
from scorematching.objectives.layerwise import SelectableFeatures, select

__all__ = ["Features", "QuadraticForm", "SelectableFeatures", "quadratic_form", "solve_linear"]

Features = Callable[[Tensor], Tensor]
"""The features of a linear model, ``x: (N, *event) -> (N, L)``."""


@dataclass(frozen=True)
class QuadraticForm:
    """The mean loss of a linear model, ``0.5 alpha' G alpha + b . alpha + constant``.

    Attributes:
        G: ``(L, L)``, symmetric and positive semidefinite.
        b: ``(L,)``.
        constant: the loss of the base alone, ``()``.
        count: N, how many points it is the mean of.

    Example:
        One feature, ``-|x|^2 / 2``, and no base: its best weight is the precision of the data.

        >>> from scorematching import ScoreMatching
        >>> x = torch.tensor([[-2.0], [2.0]])
        >>> normal = lambda x: -0.5 * x.square()
        >>> form = quadratic_form(normal, None, x, ScoreMatching())
        >>> torch.allclose(form.solve(lam=0.0), torch.tensor([0.25]))
        True
    """

    G: Tensor
    b: Tensor
    constant: Tensor
    count: int

    def __call__(self, alpha: Tensor) -> Tensor:
        """The mean loss at weights ``alpha: (L,)``, without a penalty: ``()``."""
        with without_autocast(self.G):
            return 0.5 * alpha @ self.G @ alpha + self.b @ alpha + self.constant

    def merge(self, other: QuadraticForm) -> QuadraticForm:
        """The form of the points of both."""
        count = self.count + other.count
        weight = other.count / count
        return QuadraticForm(
            self.G.lerp(other.G, weight),
            self.b.lerp(other.b, weight),
            self.constant.lerp(other.constant, weight),
            count,
        )

    def update(
        self,
        features: Features,
        base: Features | None,
        x: Tensor,
        objective: Objective,
        generator: torch.Generator | None = None,
    ) -> QuadraticForm:
        """The form of these points and of more, with new noise; arguments as `solve_linear`."""
        return self.merge(draw_form(features, base, x, objective, generator))

    def solve(self, lam: float | Tensor) -> Tensor:
        """The weights ``(L,)`` that minimise the loss plus ``0.5 lam |alpha|^2``.

        ``alpha = -(G + lam I)^-1 b`` by Cholesky factorisation; differentiable in G, b and lam.

        Args:
            lam: the ridge penalty, a number or a tensor ``()``, not negative.

        Raises:
            TypeError: if lam is not a number.
            ValueError: if lam is negative, if G or b is not finite, or if ``G + lam I`` is not
                positive definite to working precision.
        """
        _check_penalty(lam)
        for name, value in (("G", self.G), ("b", self.b)):
            if can_read_values(value) and not bool(value.isfinite().all()):
                raise ValueError(
                    f"{name} must be finite, got NaN or infinity, for any lam; check that "
                    "features and base and their derivatives are finite at every point"
                )
        penalty = lam * torch.eye(len(self.b), dtype=self.G.dtype, device=self.G.device)
        matrix = self.G + penalty
        factor, info = torch.linalg.cholesky_ex(matrix)
        _check_factor(matrix, factor, info, lam)
        return -torch.cholesky_solve(self.b[:, None], factor).squeeze(1)


def quadratic_form(
    features: Features, base: Features | None, x: Tensor, objective: Objective, noise: Any = None
) -> QuadraticForm:
    """The quadratic form of a linear model at points, for noise that has been drawn.

    Deterministic and differentiable; the features and the base get the same noise. Cost: the
    tangents of D directions (or of M, for plain sliced score matching) through the features, and
    L^2 N D multiplications. With curvature propagation the features are evaluated at N L points;
    see `SelectableFeatures`.

    Args:
        features: phi, ``(N, *event) -> (N, L)``.
        base: log q0, ``(N, *event) -> (N,)``; None for a flat one.
        x: points ``(N, *event)``.
        objective: any objective with `terms`.
        noise: the result of ``objective.draw(x)``.

    Raises:
        TypeError: if the objective is not of the form ``0.5 |first|^2 + second``, or has a ladder.
        ValueError: if features or base have the wrong shape, or if the objective's loss is not
            quadratic.

    Example:
        Its value is the mean loss.

        >>> from scorematching import ScoreMatching
        >>> x = torch.randn(5, 2, dtype=torch.float64)
        >>> phi = lambda x: torch.stack([x.sin().sum(-1), x.prod(-1)], dim=1)
        >>> q0 = lambda x: -0.5 * x.square().sum(-1)
        >>> form = quadratic_form(phi, q0, x, ScoreMatching())
        >>> alpha = torch.tensor([0.5, -0.1], dtype=torch.float64)
        >>> loss = ScoreMatching()(lambda x: q0(x) + phi(x) @ alpha, x).mean()
        >>> torch.allclose(form(alpha), loss)
        True
    """
    if isinstance(objective, SlicedScoreMatchingVR) and objective.beta != 1:
        raise ValueError(
            f"beta must be 1 for a closed form, got {objective.beta!r}; use "
            "SlicedScoreMatchingVR(), or SlicedScoreMatching() for beta = 0"
        )
    check_points(x)
    check_type(
        features, Callable, "features must be callable", "pass a function (N, *event) -> (N, L)"
    )
    if base is not None:
        check_type(
            base, Callable, "base must be callable or None", "pass a function of points -> (N,)"
        )
    # The base is one more feature, of weight one, so that it gets the same noise.
    first, second = objective.terms(_FeatureField(_joined(features, base)), x, noise)
    rows = at_least_single(first.movedim(-1, 0).flatten(0, 1))  # (K N, 1 + L)
    with without_autocast(x):
        square = rows.mT @ rows / x.shape[0]
    linear = at_least_single(second).mean(0)
    return QuadraticForm(
        G=square[1:, 1:],
        b=square[1:, 0] + linear[1:],
        constant=0.5 * square[0, 0] + linear[0],
        count=x.shape[0],
    )


def solve_linear(
    features: Features,
    base: Features | None,
    x: Tensor,
    objective: Objective,
    lam: float | Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The best weights of a linear model, ``alpha = -(G + lam I)^-1 b``, ``(L,)``.

    They minimise ``mean loss + 0.5 lam |alpha|^2`` of ``log p = log q0 + alpha . phi``, and are
    differentiable in everything that phi, q0 and lam depend on.

    Args:
        features: phi, ``(N, *event) -> (N, L)``.
        base: log q0, ``(N, *event) -> (N,)``; None for a flat one.
        x: points ``(N, *event)``.
        objective: any objective with `terms`.
        lam: the ridge penalty, a number or a tensor ``()``, not negative.
        generator: source of randomness; None is torch's default generator.

    Raises:
        TypeError: if the objective is not of the form ``0.5 |first|^2 + second``.
        ValueError: if shapes are wrong, or if ``G + lam I`` is not positive definite.

    Reference: Song et al. (2019), Proposition 2; Wenliang et al. (2019), Proposition 3.

    Example:
        The mean and precision of a Gaussian are the weights of x and -x^2 / 2.

        >>> from scorematching import ScoreMatching
        >>> x = torch.tensor([[1.0], [5.0]])  # mean 3, variance 4
        >>> phi = lambda x: torch.cat([x, -0.5 * x.square()], dim=1)
        >>> alpha = solve_linear(phi, None, x, ScoreMatching(), lam=0.0)
        >>> torch.allclose(alpha, torch.tensor([0.75, 0.25]))
        True
    """
    return draw_form(features, base, x, objective, generator).solve(lam)


def draw_form(
    features: Features,
    base: Features | None,
    x: Tensor,
    objective: Objective,
    generator: torch.Generator | None,
) -> QuadraticForm:
    """`quadratic_form` with noise drawn now."""
    check_points(x)
    check_generator(generator, x)
    check_type(objective, Objective, "objective must be an Objective", "pass ScoreMatching()")
    return quadratic_form(features, base, x, objective, objective.draw(x, generator))


class _FeatureField(LogDensityField):
    """The features of a linear model, whose derivatives are taken forward where that is faster."""

    _curvature = staticmethod(routes.features_curvature)

    def __init__(self, features: Features) -> None:
        super().__init__(features, feature_axes=1)

    def given(self, *conditions: Any) -> Any:
        """Refuse the levels of noise of a ladder, which features do not take.

        Raises:
            TypeError: says what to use.
        """
        raise TypeError(
            "sigma must be a number, or one for each coordinate, for a closed form, got a "
            "NoiseLadder, whose levels features do not take; use DenoisingScoreMatching(sigma=0.5) "
            "and solve once for each level"
        )

    def score(self, x: Tensor) -> Tensor:
        """The gradients of all features, ``(N, L, *event)``."""
        return answer(self, routes.jacobian, x)

    def slice(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of all features along each direction, and their curvatures."""
        check_points(x)
        return answer(self, partial(routes.features_slice, v=directions(v, x)), x)


def _joined(features: Features, base: Features | None) -> Features:
    """Base and features side by side, ``(N, 1 + L)``."""

    def log_q0(x: Tensor) -> Tensor:
        q0 = x.new_zeros(x.shape[0]) if base is None else base(x)
        wanted = "base must return one log-density per point, shape {}"
        check_shape(q0, x.shape[:1], wanted, "reduce over the event axes only")
        return q0

    def every(x: Tensor) -> Tensor:
        phi = features(x)
        wanted = f"features must return one row per point, shape ({x.shape[0]}, L)"
        check_shape(phi, (x.shape[0], None), wanted, "end with .flatten(1)")
        return torch.cat([log_q0(x)[:, None], phi], dim=1)

    def at(x: Tensor, index: Tensor) -> Tensor:
        return torch.where(index == 0, log_q0(x), select(features, x, (index - 1).clamp(min=0)))

    return SelectableFeatures(every, at) if isinstance(features, SelectableFeatures) else every


def _check_penalty(lam: Any) -> None:
    if not is_number(lam) and not (isinstance(lam, Tensor) and lam.ndim == 0):
        raise TypeError(f"lam must be a number or a tensor of shape (), got {lam!r}; try 0.01")
    if isinstance(lam, Tensor) and not can_read_values(lam):
        return
    if not 0 <= _number(lam) < float("inf"):
        raise ValueError(f"lam must be finite and not negative, got {_number(lam)}; try 0.01")


def _number(lam: float | Tensor) -> float:
    return float(lam.detach()) if isinstance(lam, Tensor) else float(lam)


def _check_factor(matrix: Tensor, factor: Tensor, info: Tensor, lam: float | Tensor) -> None:
    if not can_read_values(info):
        return
    # Rounding can make the pivots of a singular matrix positive, with a meaningless solution.
    # Each is compared with its own entry of the diagonal, since features may have any units;
    # only gradients that are rounding errors of those of other features are lost, too.
    eps, own = torch.finfo(matrix.dtype).eps, matrix.diagonal()
    # No ridge limits the error, which is some per cent there: x and x^2 far from zero.
    times = 1000 if not isinstance(lam, Tensor) and lam == 0 else 4
    lost = factor.diagonal().square() <= times * eps * own
    lost |= own <= (4 * eps) ** 2 * own.max()
    if int(info) or bool(lost.any()):
        where = int(info) or int(lost.nonzero()[0]) + 1
        raise ValueError(
            f"G + lam I must be positive definite, got lam = {_number(lam):.3g} and G of "
            f"{len(matrix)} features, of which number {where} depends on those before it to the "
            f"precision of {matrix.dtype}; raise lam, drop features that repeat others, use more "
            "points, or compute in double precision"
        )

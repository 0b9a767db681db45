"""The best weights of a model that is linear in them, in closed form.

For ``log p = log q0 + alpha . phi`` both halves of a score-matching loss are linear in the field,
hence in alpha, and the mean loss is a quadratic:

    ``J(alpha) = 0.5 alpha' G alpha + b . alpha + constant``
    ``G = mean <first(phi), first(phi)>``
    ``b = mean (<first(phi), first(log q0)> + second(phi))``

so that ``alpha = -(G + lam I)^-1 b`` minimises ``J(alpha) + 0.5 lam |alpha|^2``. The same few
lines serve every objective that answers in `Terms`.

The layerwise baselines are no exceptions. Approximate backpropagation is linear in the weights of
the last layer, since it sweeps the squares of tangents forward and the weights come after. The
estimate of curvature propagation is not linear in alpha, but it is unbiased, and so is the sum of
one such estimate for every feature, each with noise of its own: that is what is used here. G has
no noise in it, so alpha is then unbiased too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_look, check_generator, check_points, is_number
from scorematching._shapes import dimension
from scorematching.derivatives.pairing import Jet, Tangents
from scorematching.derivatives.sweeps import Signs
from scorematching.derivatives.tracing import Tape, Traced, Untraceable
from scorematching.fields import LogDensityField, directions
from scorematching.objectives import Objective, SlicedScoreMatchingVR

Features = Callable[[Tensor], Tensor]
"""The features of a linear model, ``x: (N, *event) -> (N, L)``."""

FORWARD = 2
"""Coordinates per feature up to which forward tangents are cheaper than reverse passes, on a CPU.

A GPU carries all tangents side by side, but takes reverse passes one after the other.
"""


@dataclass(frozen=True)
class SelectableFeatures:
    """Features of which a point can be asked for one alone.

    Any function of ``(N, L)`` numbers will do for features. Curvature propagation, however, asks
    for every feature at a copy of the points, N L times, and is L times cheaper where the others
    need not be computed.

    Attributes:
        every: all features, ``(N, *event) -> (N, L)``.
        at: one feature for each point, ``x: (N, *event), index: (N,) -> (N,)``.

    Example:
        >>> phi = SelectableFeatures(torch.sin, lambda x, i: x.gather(1, i[:, None])[:, 0].sin())
        >>> x, i = torch.randn(3, 2), torch.tensor([0, 1, 1])
        >>> torch.equal(phi.at(x, i), phi(x)[range(3), i])
        True
    """

    every: Features
    at: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """All features at points, ``(N, L)``."""
        return self.every(x)


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
        >>> form = quadratic_form(ScoreMatching(), normal, None, x)
        >>> torch.allclose(form.solve(lam=0.0), torch.tensor([0.25]))
        True
    """

    G: Tensor
    b: Tensor
    constant: Tensor
    count: int

    def __call__(self, alpha: Tensor) -> Tensor:
        """The mean loss at weights ``alpha: (L,)``, without a penalty: ``()``."""
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
        objective: Objective,
        features: Features,
        base: Features | None,
        x: Tensor,
        generator: torch.Generator | None = None,
    ) -> QuadraticForm:
        """The form of these points and of more, with fresh noise; arguments as `solve_linear`."""
        check_points(x)
        check_generator(generator, x)
        noise = objective.draw(x, generator)
        return self.merge(quadratic_form(objective, features, base, x, noise))

    def solve(self, lam: float | Tensor) -> Tensor:
        """The weights that minimise the loss plus ``0.5 lam |alpha|^2``.

        ``alpha = -(G + lam I)^-1 b`` by Cholesky factorisation; differentiable in G, b and lam.

        Args:
            lam: the ridge penalty, a number or a tensor ``()``, not negative.

        Returns:
            alpha ``(L,)``.

        Raises:
            TypeError: if lam is not a number.
            ValueError: if lam is negative, if G or b is not finite, or if ``G + lam I`` is not
                positive definite to working precision.
        """
        _check_penalty(lam)
        _check_finite_form(self)
        penalty = lam * torch.eye(len(self.b), dtype=self.G.dtype, device=self.G.device)
        matrix = self.G + penalty
        factor, info = torch.linalg.cholesky_ex(matrix)
        _check_factor(matrix, factor, info, lam)
        return -torch.cholesky_solve(self.b[:, None], factor).squeeze(1)


def quadratic_form(
    objective: Objective,
    features: Features,
    base: Features | None,
    x: Tensor,
    noise: Any = None,
) -> QuadraticForm:
    """The quadratic form of a linear model at points, for noise that has been drawn.

    Deterministic; the features and the base meet the same noise. Cost: the tangents of D
    directions (or of M, for plain sliced score matching) through the features, and L^2 N D
    multiplications. Under curvature propagation the features are evaluated at N L points; see
    `SelectableFeatures`.

    Args:
        objective: any objective with `terms`.
        features: phi, ``(N, *event) -> (N, L)``.
        base: log q0, ``(N, *event) -> (N,)``; None for a flat one.
        x: points ``(N, *event)``.
        noise: what ``objective.draw(x)`` returned.

    Returns:
        The form, with the graph of everything it depends on.

    Raises:
        TypeError: if the objective is not of the form ``0.5 |first|^2 + second``.
        ValueError: if features or base have the wrong shape, or if the objective's loss is not
            quadratic.

    Example:
        Its values are those of the objective.

        >>> from scorematching import ScoreMatching
        >>> x = torch.randn(5, 2, dtype=torch.float64)
        >>> phi = lambda x: torch.stack([x.sin().sum(-1), x.prod(-1)], dim=1)
        >>> q0 = lambda x: -0.5 * x.square().sum(-1)
        >>> form = quadratic_form(ScoreMatching(), phi, q0, x)
        >>> alpha = torch.tensor([0.5, -0.1], dtype=torch.float64)
        >>> loss = ScoreMatching()(lambda x: q0(x) + phi(x) @ alpha, x).mean()
        >>> torch.allclose(form(alpha), loss)
        True
    """
    _check_quadratic(objective)
    check_points(x)
    # The base is one more feature whose weight is one, so that it cannot meet other noise.
    first, second = objective.terms(_FeatureField(_joined(features, base)), x, noise)
    rows = first.movedim(-1, 0).flatten(0, 1)  # (K N, 1 + L)
    square = rows.mT @ rows / x.shape[0]
    linear = second.mean(0)
    return QuadraticForm(
        G=square[1:, 1:],
        b=square[1:, 0] + linear[1:],
        constant=0.5 * square[0, 0] + linear[0],
        count=x.shape[0],
    )


def solve_linear(
    objective: Objective,
    features: Features,
    base: Features | None,
    x: Tensor,
    lam: float | Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The best weights of a linear model, ``alpha = -(G + lam I)^-1 b``.

    They minimise ``mean loss + 0.5 lam |alpha|^2`` of ``log p = log q0 + alpha . phi``, and are
    differentiable in everything that phi, q0 and lam depend on.

    Args:
        objective: any objective with `terms`.
        features: phi, ``(N, *event) -> (N, L)``.
        base: log q0, ``(N, *event) -> (N,)``; None for a flat one.
        x: points ``(N, *event)``.
        lam: the ridge penalty, a number or a tensor ``()``, not negative.
        generator: source of randomness; None is torch's default generator.

    Returns:
        alpha ``(L,)``.

    Raises:
        TypeError: if the objective is not of the form ``0.5 |first|^2 + second``.
        ValueError: if shapes are wrong, or if ``G + lam I`` is not positive definite.

    Reference: Song et al. (2019), Proposition 2; Wenliang et al. (2019), Proposition 3.

    Example:
        The mean and precision of a Gaussian are the weights of x and -x^2 / 2.

        >>> from scorematching import ScoreMatching
        >>> x = torch.tensor([[1.0], [5.0]])  # mean 3, variance 4
        >>> phi = lambda x: torch.cat([x, -0.5 * x.square()], dim=1)
        >>> alpha = solve_linear(ScoreMatching(), phi, None, x, lam=0.0)
        >>> torch.allclose(alpha, torch.tensor([0.75, 0.25]))
        True
    """
    check_points(x)
    check_generator(generator, x)
    noise = objective.draw(x, generator)
    return quadratic_form(objective, features, base, x, noise).solve(lam)


class _FeatureField(LogDensityField):
    """The features of a linear model, differentiated forward.

    D tangents through the model give the scores of all L features, where a reverse pass gives
    those of one.
    """

    def __init__(self, features: Features) -> None:
        super().__init__(features, feature_axes=1)

    def score(self, x: Tensor) -> Tensor:
        """The gradients of all features, ``(N, L, *event)``."""
        check_points(x)
        order, reverse = int(torch.is_grad_enabled()), super().score
        return self.model.choose(lambda: self._scores(x, order), lambda: reverse(x))

    def score_and_curvature(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of all features, and their curvatures along v."""
        check_points(x)
        reverse = super().score_and_curvature

        def traced() -> tuple[Tensor, Tensor]:
            y = self._jet(x, v)
            return self._scores(x, order=0), _second(y)

        return self.model.choose(traced, lambda: reverse(x, v))

    def slice(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of all features along each direction, and their curvatures."""
        check_points(x)
        reverse = super().slice

        def traced() -> tuple[Tensor, Tensor]:
            y = self._jet(x, v)
            return _tangents_last(y), _second(y)

        return self.model.choose(traced, lambda: reverse(x, v))

    def score_and_approximate_divergence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of all features, and each one's trace by approximate backpropagation.

        The trace of ``c . phi`` is linear in c, so its derivative in c has those of all features:
        two reverse passes, however many there are.
        """
        training = torch.is_grad_enabled()
        score = self.score(x)
        with torch.enable_grad():
            c = torch.zeros(score.shape[:2], dtype=x.dtype, device=x.device, requires_grad=True)
            weighted = LogDensityField(lambda y: (self.model.call(y) * c).sum(1))
            _, trace = weighted.score_and_approximate_divergence(x)
            (traces,) = torch.autograd.grad(trace.sum(), c, create_graph=training)
        return score, traces

    def score_and_propagated_curvature(self, x: Tensor, signs: Signs) -> tuple[Tensor, Tensor]:
        """The gradients of all features, and an estimate of each one's trace with its own noise.

        Feature l of L is asked at a copy of the points of its own: one sweep over N L points.
        """
        check_points(x)
        num = self._count(x)
        index = torch.arange(num, device=x.device).repeat_interleave(x.shape[0])
        one = LogDensityField(lambda y: _select(self.model.call, y, index))
        copies = x.repeat(num, *[1] * (x.ndim - 1))
        score, trace = one.score_and_propagated_curvature(copies, signs)
        shape = (num, x.shape[0])
        return score.unflatten(0, shape).transpose(0, 1), trace.unflatten(0, shape).mT

    def _scores(self, x: Tensor, order: int) -> Tensor:
        """All gradients by forward tangents, ``(N, L, *event)``."""
        d = dimension(x)
        if not x.is_cuda and d > FORWARD * self._count(x):
            raise Untraceable("many coordinates, few features: reverse passes are cheaper")
        basis = torch.eye(d, dtype=x.dtype, device=x.device).reshape(d, 1, *x.shape[1:])
        tape = Tangents(x.shape[0])
        y = self.model.trace(x, basis, tape, order, "score")
        _require_repeatable(tape)
        return _tangents_last(y).unflatten(-1, x.shape[1:])

    @torch.no_grad()
    def _count(self, x: Tensor) -> int:
        """L, and one for the base."""
        return self.model.evaluate(x).shape[1]

    def _jet(self, x: Tensor, v: Tensor) -> Any:
        """All curvatures along v, carried forward."""
        tape = Jet(x.shape[0])
        y = self.model.trace(x, directions(v, x), tape, order=1 + torch.is_grad_enabled())
        _require_repeatable(tape)
        return y


def _tangents_last(y: Traced) -> Tensor:
    """Tangents of all directions, ``(N, L, M)``."""
    assert y.u is not None
    return y.u.expand(y.u.shape[0], *y.p.shape).movedim(0, -1)


def _second(y: Traced) -> Tensor:
    return torch.zeros_like(y.p) if y.s is None else y.s.expand_as(y.p)


def _require_repeatable(tape: Tape) -> None:
    """Give up a trace that would run a random model several times."""
    if tape.random:
        raise Untraceable(f"{tape.random[0]} in training mode")


def _select(features: Features, x: Tensor, index: Tensor) -> Tensor:
    """One feature for each point, ``(N,)``."""
    if isinstance(features, SelectableFeatures):
        return features.at(x, index)
    return features(x).gather(1, index[:, None]).squeeze(1)


def _joined(features: Features, base: Features | None) -> Features:
    """Base and features side by side, ``(N, 1 + L)``."""

    def log_q0(x: Tensor) -> Tensor:
        q0 = x.new_zeros(x.shape[0]) if base is None else base(x)
        if tuple(q0.shape) != (x.shape[0],):
            raise ValueError(
                f"base must return one log-density per point, shape ({x.shape[0]},), got "
                f"{tuple(q0.shape)}; reduce over the event axes only"
            )
        return q0

    def every(x: Tensor) -> Tensor:
        phi = features(x)
        if phi.ndim != 2 or phi.shape[0] != x.shape[0]:
            raise ValueError(
                f"features must return one row per point, shape ({x.shape[0]}, L), got "
                f"{tuple(phi.shape)}; end with .flatten(1)"
            )
        return torch.cat([log_q0(x)[:, None], phi], dim=1)

    def at(x: Tensor, index: Tensor) -> Tensor:
        return torch.where(index == 0, log_q0(x), _select(features, x, (index - 1).clamp(min=0)))

    return SelectableFeatures(every, at) if isinstance(features, SelectableFeatures) else every


def _check_quadratic(objective: Objective) -> None:
    if isinstance(objective, SlicedScoreMatchingVR) and objective.beta != 1:
        raise ValueError(
            f"beta must be 1 for a closed form, got {objective.beta!r}; use "
            "SlicedScoreMatchingVR(), or SlicedScoreMatching() for beta = 0"
        )


def _check_penalty(lam: Any) -> None:
    if not is_number(lam) and not (isinstance(lam, Tensor) and lam.ndim == 0):
        raise TypeError(f"lam must be a number or a tensor of shape (), got {lam!r}; try 0.01")
    if isinstance(lam, Tensor) and not can_look(lam):
        return
    if not 0 <= _number(lam) < float("inf"):
        raise ValueError(f"lam must be finite and not negative, got {_number(lam)}; try 0.01")


def _number(lam: float | Tensor) -> float:
    return float(lam.detach()) if isinstance(lam, Tensor) else float(lam)


def _check_finite_form(form: QuadraticForm) -> None:
    for name, value in (("G", form.G), ("b", form.b)):
        if can_look(value) and not bool(value.isfinite().all()):
            raise ValueError(
                f"{name} must be finite, got NaN or infinity, which no lam cures; check that "
                "features and base and their derivatives are finite at every point"
            )


def _check_factor(matrix: Tensor, factor: Tensor, info: Tensor, lam: float | Tensor) -> None:
    if not can_look(info):
        return
    # Rounding can make a pivot of a singular matrix positive, and its solution nonsense.
    rounding = 4 * torch.finfo(matrix.dtype).eps * matrix.diagonal().max()
    lost = factor.diagonal().square() <= rounding
    if int(info) or bool(lost.any()):
        where = int(info) or int(lost.nonzero()[0]) + 1
        raise ValueError(
            f"G + lam I must be positive definite, got lam = {_number(lam):.3g} and G of "
            f"{len(matrix)} features, of which number {where} depends on those before it to the "
            f"precision of {matrix.dtype}; raise lam, drop features that repeat others, use more "
            "points, or compute in double precision"
        )

"""The layerwise baselines: score matching with a trace computed layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points
from scorematching._shapes import event_axes, flatten_event
from scorematching.derivatives import routes
from scorematching.fields import Field, LogDensityField, answer
from scorematching.objectives.base import Objective, require_log_density
from scorematching.projections import random_signs
from scorematching.types import Terms

Signs = Callable[[Tensor], Tensor]
"""Returns independent random signs of the shape of a tensor."""


@dataclass(frozen=True)
class ApproximateBackprop(Objective):
    """Score matching with the diagonal of every layer's Hessian only (Kingma and LeCun).

    ``J = h + 0.5 |s|^2`` where h is the trace of the Hessian with every off-diagonal entry of a
    layer's Hessian dropped. Exact for one hidden layer, biased for more, so that the optimum
    moves: a baseline, not an objective to choose. Cost: about 1.5 times denoising score matching.

    Reference: Kingma and LeCun (2010); Song et al. (2019), Section 5.1.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> ApproximateBackprop()(normal, torch.ones(1, 3)).item()
        -1.5
    """

    def terms(self, field: Field, x: Tensor, noise: Any = None) -> Terms:
        """First: the score ``(N, *F, D)``; second: the approximate trace."""
        density = require_log_density(field, self)
        ask = approximate_divergences if density.feature_axes else approximate_divergence
        score, trace = ask(density, x)
        return Terms(flatten_event(score, event_axes(x)), trace)


@dataclass(frozen=True)
class CurvaturePropagation(Objective):
    """Score matching with a trace estimated by noise at every nonlinear operation.

    ``J = |Re S|^2 - |Im S|^2 + 0.5 |s|^2``, where S is a sum of independent noise whose covariance
    is the curvature of each operation: unbiased for any model made of known operations, with more
    variance than sliced score matching, since it has noise for every unit and not for every
    coordinate. Cost: about twice denoising score matching.

    Reference: Martens et al. (2012); Song et al. (2019), Section 5.1.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> CurvaturePropagation()(normal, torch.ones(1, 3)).item()
        -1.5
    """

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> SignTape:
        """Signs that are drawn when needed, since their number depends on the model."""
        return SignTape(generator)

    def share(self, noise: SignTape, x: Tensor, rows: slice) -> None:
        """None: signs are drawn while the model runs, for the points that it is given."""
        return None

    def terms(self, field: Field, x: Tensor, noise: SignTape) -> Terms:
        """First: the score ``(N, *F, D)``; second: the estimated trace."""
        density = require_log_density(field, self)
        ask = propagated_curvatures if density.feature_axes else propagated_curvature
        score, trace = ask(density, x, noise.play())
        return Terms(flatten_event(score, event_axes(x)), trace)


class SignTape:
    """Signs that are drawn when first used, and repeated afterwards."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = generator
        self._drawn: list[Tensor] = []

    def play(self) -> Signs:
        """A function ``signs(like)`` that returns one tensor after the other, from the first."""
        position = count()

        def signs(like: Tensor) -> Tensor:
            i = next(position)
            if i == len(self._drawn):
                self._drawn.append(random_signs(like, like.shape, self._generator))
            if self._drawn[i].shape != like.shape:
                raise ValueError(
                    f"noise must be drawn for this model and these points, got signs of shape "
                    f"{tuple(self._drawn[i].shape)} where {tuple(like.shape)} are needed; "
                    "draw anew with objective.draw(x)"
                )
            return self._drawn[i]

        return signs


# The traces that the two objectives use, of one log-density or of the features of a linear model.


@dataclass(frozen=True)
class SelectableFeatures:
    """Features of which one alone can be evaluated at each point.

    Features can be any function that returns ``(N, L)`` numbers. Curvature propagation, however,
    evaluates every feature at its own copy of the points, N L in all, and is L times cheaper where
    the other features of a copy need not be computed.

    Attributes:
        every: all features, ``(N, *event) -> (N, L)``.
        at: one feature for each point, ``x: (N, *event), index: (N,) -> (N,)``.

    Example:
        >>> phi = SelectableFeatures(torch.sin, lambda x, i: x.gather(1, i[:, None])[:, 0].sin())
        >>> x, i = torch.randn(3, 2), torch.tensor([0, 1, 1])
        >>> torch.equal(phi.at(x, i), phi(x)[range(3), i])
        True
    """

    every: Callable[[Tensor], Tensor]
    at: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """All features at points, ``(N, L)``."""
        return self.every(x)


def select(features: Callable[[Tensor], Tensor], x: Tensor, index: Tensor) -> Tensor:
    """One feature for each point, ``(N,)``."""
    if isinstance(features, SelectableFeatures):
        return features.at(x, index)
    return features(x).gather(1, index[:, None]).squeeze(1)


def approximate_divergence(field: LogDensityField, x: Tensor) -> tuple[Tensor, Tensor]:
    """The score, and the trace of the Hessian by approximate backpropagation."""
    return answer(field, routes.approximate_divergence, x)


def approximate_divergences(field: LogDensityField, x: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of all features, and each one's trace by approximate backpropagation.

    The trace of ``c . phi`` is linear in c, so its derivative in c has those of all features:
    two reverse passes, however many features there are.
    """
    training = torch.is_grad_enabled()
    score = field.score(x)
    with torch.enable_grad():
        c = torch.zeros(score.shape[:2], dtype=x.dtype, device=x.device, requires_grad=True)
        weighted = LogDensityField(lambda y: (field.model.call(y) * c).sum(1))
        _, trace = approximate_divergence(weighted, x)
        (traces,) = torch.autograd.grad(trace.sum(), c, create_graph=training)
    return score, traces


def propagated_curvature(field: LogDensityField, x: Tensor, signs: Signs) -> tuple[Tensor, Tensor]:
    """The score, and the trace of the Hessian estimated by curvature propagation."""
    return answer(field, partial(routes.propagated_curvature, signs=signs), x)


def propagated_curvatures(field: LogDensityField, x: Tensor, signs: Signs) -> tuple[Tensor, Tensor]:
    """The scores of all features, and an estimate of each one's trace with its own noise.

    Feature l of L is evaluated at its own copy of the points: one pass over N L points.
    """
    check_points(x)
    with torch.no_grad():
        num = field.model.evaluate(x).shape[1]
    index = torch.arange(num, device=x.device).repeat_interleave(x.shape[0])
    one = LogDensityField(lambda y: select(field.model.call, y, index))
    copies = x.repeat(num, *[1] * (x.ndim - 1))
    score, trace = propagated_curvature(one, copies, signs)
    shape = (num, x.shape[0])
    return score.unflatten(0, shape).transpose(0, 1), trace.unflatten(0, shape).mT

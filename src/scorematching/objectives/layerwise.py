"""The layerwise baselines: score matching with a trace swept through the layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from scorematching._shapes import event_axes, flatten_event
from scorematching.fields import Field
from scorematching.objectives.base import Objective, require_log_density
from scorematching.projections import random_signs
from scorematching.types import Terms


@dataclass(frozen=True)
class ApproximateBackprop(Objective):
    """Score matching with the diagonal of every layer's Hessian only (Kingma and LeCun).

    ``J = h + 0.5 |s|^2`` where h is the trace of the Hessian by a sweep that drops everything off
    the diagonal. Exact for one hidden layer, biased for more, so that the optimum moves: a
    baseline, not an objective to choose. Cost: about 1.5 times denoising score matching.

    Reference: Kingma and LeCun (2010); Song et al. (2019), Section 5.1.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> ApproximateBackprop()(normal, torch.ones(1, 3)).item()
        -1.5
    """

    def terms(self, field: Field, x: Tensor, noise: Any = None) -> Terms:
        """First: the score ``(N, D)``; second: the approximate trace."""
        score, trace = require_log_density(field, self).score_and_approximate_divergence(x)
        return Terms(flatten_event(score, event_axes(x)), trace)


@dataclass(frozen=True)
class CurvaturePropagation(Objective):
    """Score matching with a trace estimated by noise at every curved operation.

    ``J = |Re S|^2 - |Im S|^2 + 0.5 |s|^2``, where S gathers independent noise whose covariance is
    the curvature of each operation: unbiased for any model made of known operations, with more
    variance than sliced score matching, since it has noise for every unit and not for every
    coordinate. Cost: about twice denoising score matching.

    Reference: Martens et al. (2012); Song et al. (2019), Section 5.1.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> CurvaturePropagation()(normal, torch.ones(1, 3)).item()
        -1.5
    """

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> SignTape:
        """A tape of signs, since how many are needed depends on the model."""
        return SignTape(generator)

    def terms(self, field: Field, x: Tensor, noise: SignTape) -> Terms:
        """First: the score ``(N, D)``; second: the estimated trace."""
        density = require_log_density(field, self)
        score, trace = density.score_and_propagated_curvature(x, noise.play())
        return Terms(flatten_event(score, event_axes(x)), trace)


class SignTape:
    """Signs drawn the first time they are asked for, and the same ones every time after.

    Args:
        generator: source of randomness; None is torch's default generator.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        """Start an empty tape."""
        self._generator = generator
        self._drawn: list[Tensor] = []

    def play(self) -> Callable[[Tensor], Tensor]:
        """Signs from the beginning of the tape: ``signs(like)``, one tensor after the other."""
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

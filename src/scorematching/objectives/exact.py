"""Exact score matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from scorematching._shapes import event_axes, flatten_event
from scorematching.fields import Field
from scorematching.objectives.base import Objective
from scorematching.types import Terms


@dataclass(frozen=True)
class ScoreMatching(Objective):
    """Score matching with the exact trace of the Hessian.

    ``J = tr grad s + 0.5 |s|^2``, whose mean over data is the Fisher divergence to the data up to
    a constant. Cost: D second-order passes; the sliced objectives need M.

    Reference: Hyvarinen (2005); Song et al. (2019), Eq. (2) and Algorithm 2.

    Example:
        >>> import torch
        >>> x = torch.ones(1, 3)
        >>> ScoreMatching()(lambda x: -0.5 * x.square().sum(-1), x).item()  # 0.5 * 3 - 3
        -1.5
    """

    def terms(self, field: Field, x: Tensor, noise: Any = None) -> Terms:
        """First: the score ``(N, *F, D)``; second: its divergence."""
        score, divergence = field.score_and_divergence(x)
        return Terms(flatten_event(score, event_axes(x)), divergence)

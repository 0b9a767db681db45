"""Maximum likelihood, for normalised models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from scorematching.fields import Field
from scorematching.objectives.base import Objective, require_log_density


@dataclass(frozen=True)
class MaximumLikelihood(Objective):
    """Minus the log-likelihood of a normalised model: the baseline for flows.

    ``J = -log p(x)``. A model with an attribute ``normalised`` that is False is refused, since its
    likelihood has no maximum.

    Reference: Song et al. (2019), Section 6.1.

    Example:
        >>> import torch
        >>> normal = torch.distributions.Normal(0.0, 1.0)
        >>> loss = MaximumLikelihood()(lambda x: normal.log_prob(x).sum(-1), torch.zeros(1, 1))
        >>> round(loss.item(), 4)  # 0.5 log 2 pi
        0.9189
    """

    def loss(self, field: Field, x: Tensor, noise: Any = None) -> Tensor:
        """The loss of every point, ``(N,)``."""
        density = require_log_density(field, self)
        if not density.normalised:
            raise ValueError(
                f"MaximumLikelihood needs a normalised model, got {density} with "
                "normalised = False; train it with SlicedScoreMatchingVR"
            )
        return -density.log_density(x)

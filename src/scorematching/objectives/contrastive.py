"""Noise-contrastive estimation with shifted data as noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from scorematching._checks import check_positive
from scorematching._shapes import dimension
from scorematching.fields import Field, directions
from scorematching.objectives.base import require_log_density
from scorematching.objectives.sliced import Sliced


@dataclass(frozen=True)
class NoiseContrastive(Sliced):
    """Noise-contrastive estimation whose noise is the data shifted by a small step u = h v.

    ``J = -log sigmoid(f(x) - f(x - u)) - log sigmoid(f(x) - f(x + u))``, averaged over M
    directions, with ``h = eps / sqrt(D)``. As eps shrinks it tends to
    ``2 log 2 + h^2 / 2 * (sliced score matching)``: the same optimum, on the scale of h^2, so
    divide the loss by h^2 or raise the learning rate. Cost: 2 M + 1 evaluations.

    Args:
        projection: distribution of the directions, with ``E[v v'] = I``; not `SplitRademacher`,
            since the loss is not quadratic in v.
        num_projections: M, directions per point.
        eps: length of the step, in the units of x.

    Reference: Gutmann and Hyvarinen (2010); Song et al. (2019), Eq. (10), (11) and Proposition 1
    (whose factor 1/4 should be 1/2).

    Example:
        >>> flat = lambda x: 0.0 * x.sum(-1)
        >>> round(NoiseContrastive()(flat, torch.ones(1, 2)).item(), 4)  # 2 log 2
        1.3863
    """

    eps: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.eps, "eps", "0.1 suits whitened data in float32")

    def loss(self, field: Field, x: Tensor, noise: Tensor) -> Tensor:
        """The loss of every point, ``(N,)``."""
        density = require_log_density(field, self)
        step = self.eps / dimension(x) ** 0.5
        u = step * directions(noise, x)
        contrast = density.contrast(x, torch.cat([-u, u]))
        field.check_steps(x, (step,), "eps", most=0.1)  # the square of a step is off by up to 10 %
        return -2 * logsigmoid(contrast).mean(0)

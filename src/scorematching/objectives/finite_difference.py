"""Sliced score matching without derivatives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scorematching._checks import check_positive
from scorematching._shapes import dimension
from scorematching.fields import Field
from scorematching.objectives.sliced import Sliced
from scorematching.types import Terms


@dataclass(frozen=True)
class FiniteDifferenceSSM(Sliced):
    """Sliced score matching by finite differences (FD-SSM): forward passes only.

    `SlicedScoreMatching` with ``v.s`` and ``v' (grad s) v`` by central differences at
    ``x +- h v``, ``h = eps / sqrt(D)``: an error of order eps^2, against rounding of order
    ``precision * |f| / eps^2``. Cost: 2 M + 1 evaluations.

    Args:
        projection: distribution of the directions, with ``E[v v'] = I``; not `SplitRademacher`,
            since the loss is not quadratic in v.
        num_projections: M, directions per point.
        eps: length of the step, in the units of x.

    Reference: Pang et al. (2020), Efficient learning of generative models via finite-difference
    score matching.

    Example:
        >>> import torch
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> x = torch.ones(1, 1, dtype=torch.float64)
        >>> round(FiniteDifferenceSSM()(normal, x).item(), 9)  # quadratics have no error
        -0.5
    """

    eps: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.eps, "eps", "0.1 suits whitened data in float32")

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        """First: projected scores over sqrt(M), ``(N, *F, M)``; second: curvature along v."""
        step = self.eps / dimension(x) ** 0.5
        projected, curvature = field.slice_by_differences(x, noise, step)
        field.check_steps(x, (step,), "eps", most=0.1)  # the square of a step is off by up to 10 %
        return Terms(projected / projected.shape[-1] ** 0.5, curvature)

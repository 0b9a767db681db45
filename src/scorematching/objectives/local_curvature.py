"""Local curvature smoothing with Stein's identity."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as default

from torch import Tensor

from scorematching._checks import check_positive
from scorematching._shapes import event_axes, flatten_event, inner
from scorematching.fields import Field, directions, on_copies
from scorematching.objectives.sliced import Sliced
from scorematching.projections import Gaussian, Projection
from scorematching.types import Terms


@dataclass(frozen=True)
class LocalCurvatureSmoothing(Sliced):
    """Score matching with the trace smoothed over a neighbourhood (LCSS): no second derivative.

    ``J = 0.5 |s(x)|^2 + eps.s(x + sigma eps) / sigma``. By Stein's identity the mean of the second
    term over normal eps is the trace of ``grad s``, averaged over the normal neighbourhood of x, so
    the loss is that of exact score matching up to an error of order sigma^2. Unlike denoising it
    takes the square at the data. Its variance grows like ``|s|^2 / sigma^2``. Cost: 1 + M scores.

    Args:
        projection: distribution of eps; Stein's identity holds for the normal one.
        num_projections: M, draws of eps per point.
        sigma: radius of the neighbourhood, in the units of x.

    Reference: Osada, Shing and Nishide (2024), Local curvature smoothing with Stein's identity for
    efficient score matching.

    Example:
        The trace of a linear score is the same everywhere.

        >>> import torch
        >>> x, eps = torch.zeros(1, 3), torch.tensor([[1.0, -1.0, 1.0]])
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> from scorematching import LogDensityField
        >>> LocalCurvatureSmoothing().loss(LogDensityField(normal), x, eps).item()
        -3.0
    """

    projection: Projection = default(default_factory=Gaussian)
    sigma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.sigma, "sigma", "for exact curvature use SlicedScoreMatchingVR")

    def terms(self, field: Field, x: Tensor, noise: Tensor) -> Terms:
        """First: the score at the points ``(N, *F, D)``; second: its smoothed trace."""
        eps, axes = directions(noise, x), event_axes(x)

        def supported(y: Tensor) -> Tensor:
            found = field.score(y)
            field.check_support(y)
            return found

        score, moved = supported(x), on_copies(supported, x + self.sigma * eps)
        field.check_steps(x, (self.sigma,), "sigma", most=1.0)  # rounding adds 8 % to its variance
        between = [1] * (score.ndim - x.ndim)
        products = inner(eps.reshape(*eps.shape[:2], *between, *x.shape[1:]), moved, axes)
        return Terms(flatten_event(score, axes), products.mean(0) / self.sigma)

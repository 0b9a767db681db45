"""The von Mises-Fisher distribution of directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scorematching.domains import Sphere
from scorematching.domains.base import Region
from scorematching.inference.models.base import NamedModel
from scorematching.inference.parameters import Theta


class VonMisesFisher(NamedModel):
    """Directions about a mean, ``log p = eta.x`` on the sphere with ``eta = kappa mu``.

    Args:
        dim: D, so that points lie on the sphere in R^D.
        domain: the sphere, or part of it with a weight.

    Reference: Mardia, Kent and Laha (2016).

    Example:
        >>> VonMisesFisher(2).concentration({"eta": torch.tensor([3.0, 4.0])}).item()
        5.0
    """

    def __init__(self, dim: int, domain: Region | None = None) -> None:
        """Start at the uniform distribution."""
        super().__init__(dim, Sphere() if domain is None else domain)
        self.eta = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N,)``."""
        return x @ self.eta

    def concentration(self, theta: Theta) -> Tensor:
        """The concentration kappa, for `FitResult.function`."""
        return theta["eta"].norm()

    def mean_direction(self, theta: Theta) -> Tensor:
        """The mean direction ``(D,)``, for `FitResult.function`."""
        return theta["eta"] / theta["eta"].norm()

"""The Bingham and Fisher-Bingham distributions on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scorematching.domains import Sphere
from scorematching.domains.base import Region
from scorematching.inference.models.base import NamedModel, Symmetric
from scorematching.inference.parameters import Theta


class Bingham(NamedModel):
    """Axes on the sphere, ``log p = x' A x``, and with ``linear=True`` also ``+ eta.x``.

    On the sphere ``x'x = 1``, so A is determined up to a multiple of the identity; its last
    diagonal entry is fixed at zero.

    Args:
        dim: D, so that points lie on the sphere in R^D.
        linear: whether there is a term ``eta.x`` (the Fisher-Bingham distribution).
        domain: the sphere, or part of it with a weight.

    Reference: Mardia, Kent and Laha (2016).

    Example:
        >>> Bingham(2).entry_names()["A"]
        ['A[0,0]', 'A[0,1]']
    """

    def __init__(self, dim: int, linear: bool = False, domain: Region | None = None) -> None:
        """Start at the uniform distribution."""
        super().__init__(dim, Sphere() if domain is None else domain)
        self._symmetric = Symmetric(dim, drop_last=True)
        self.A = nn.Parameter(torch.zeros(len(self._symmetric.rows)))
        self.eta = nn.Parameter(torch.zeros(dim), requires_grad=linear)

    def entry_names(self) -> dict[str, list[str]]:
        """Entries of A by row and column."""
        return {"A": self._symmetric.names("A")}

    def forward(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N,)``."""
        return self._symmetric.form(self.A, x) + x @ self.eta

    def matrix(self, theta: Theta) -> Tensor:
        """A ``(D, D)``, its last entry zero, for `FitResult.function`."""
        return self._symmetric.matrix(theta["A"])

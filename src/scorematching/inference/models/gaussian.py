"""The normal distribution by its precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scorematching.domains.base import Region
from scorematching.inference.models.base import NamedModel, Symmetric
from scorematching.inference.parameters import Theta


class Gaussian(NamedModel):
    """The normal distribution, ``log p = linear.x - 0.5 x' precision x``.

    Its score is linear in the parameters, so fits have a closed form; ``linear`` is the precision
    times the mean.

    Args:
        dim: D.
        centred: fix the mean at zero.
        domain: where points live; None for all of R^D.

    Example:
        >>> from scorematching.inference import fit
        >>> x = torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
        >>> [*fit(Gaussian(1), x).params]
        ['linear[0]', 'precision[0,0]']
    """

    def __init__(self, dim: int, centred: bool = False, domain: Region | None = None) -> None:
        """Start at the standard normal distribution."""
        super().__init__(dim, domain)
        self._symmetric = Symmetric(dim)
        self.linear = nn.Parameter(torch.zeros(dim), requires_grad=not centred)
        self.precision = nn.Parameter(self._symmetric.identity())

    def entry_names(self) -> dict[str, list[str]]:
        """Entries of the precision by row and column."""
        return {"precision": self._symmetric.names("precision")}

    def forward(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N,)``."""
        return x @ self.linear - 0.5 * self._symmetric.form(self.precision, x)

    def precision_matrix(self, theta: Theta) -> Tensor:
        """The precision ``(D, D)``, for `FitResult.function`."""
        return self._symmetric.matrix(theta["precision"])

    def mean(self, theta: Theta) -> Tensor:
        """The mean ``(D,)`` (before any truncation), for `FitResult.function`."""
        linear = theta["linear"] if "linear" in theta else self.linear.detach().double()
        return torch.linalg.solve(self.precision_matrix(theta), linear)

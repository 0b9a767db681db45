"""Independent component analysis by score matching."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scorematching._checks import check_count
from scorematching.inference.models.base import NamedModel, in_units
from scorematching.inference.parameters import Theta


class ICA(NamedModel):
    """Independent components, ``log p = -2 sum_k log cosh(pi / (2 sqrt(3)) w_k.x)``.

    Each component has a logistic density of variance one. With more components than columns the
    model is overcomplete, which likelihoods cannot treat but score matching can. Rows of the
    unmixing matrix are determined up to their order and signs.

    Args:
        dim: D.
        num_components: K; D by default.

    Reference: Hyvarinen (2005), Section 3.3.

    Example:
        >>> ICA(2)(torch.zeros(1, 2)).item()
        -0.0
    """

    def __init__(self, dim: int, num_components: int | None = None) -> None:
        """Start at components along the axes, then between them."""
        super().__init__(dim)
        count = dim if num_components is None else num_components
        check_count(count, "num_components", "as many as columns is a start")
        self.unmixing = nn.Parameter(_initial_unmixing(dim, count))

    def forward(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N,)``."""
        z = math.pi / (2 * 3**0.5) * (x @ self.unmixing.T)
        return -2 * (torch.logaddexp(z, -z) - math.log(2)).sum(-1)

    def initial(self, x: Tensor) -> Theta:
        """The unmixing matrix in units of the columns."""
        count, dim = self.unmixing.shape
        return {"unmixing": in_units(self.unmixing, _initial_unmixing(dim, count), x)}


def _initial_unmixing(dim: int, count: int) -> Tensor:
    k = torch.arange(count)[:, None] - torch.arange(dim)
    return torch.where(k == 0, 1.0, 0.1) if count <= dim else torch.cos(k + 0.3)

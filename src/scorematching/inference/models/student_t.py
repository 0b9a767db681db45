"""Products of Student-t experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scorematching._checks import check_count
from scorematching.inference.models.base import NamedModel, in_units
from scorematching.inference.parameters import Theta


class StudentTExperts(NamedModel):
    """A product of Student-t experts, ``log p = -sum_k alpha_k log(1 + 0.5 (w_k.x)^2)``.

    For D = K = 1 it is Student's distribution with ``nu = 2 alpha - 1`` degrees of freedom and
    scale ``sqrt(2 / nu) / w``. Filters are determined up to their order and signs: fits from
    another start may return them otherwise.

    Args:
        dim: D.
        num_experts: K; D by default.

    Reference: Welling, Hinton and Osindero (2002), Learning sparse topographic representations
    with products of Student-t distributions.

    Example:
        >>> model = StudentTExperts(1)
        >>> round(model(torch.tensor([[2.0]])).item(), 4)  # -1.5 log 3
        -1.6479
    """

    def __init__(self, dim: int, num_experts: int | None = None) -> None:
        """Start at two degrees of freedom, with filters along the axes, then along sums."""
        super().__init__(dim)
        count = dim if num_experts is None else num_experts
        check_count(count, "num_experts", "as many as columns is a start")
        self.filters = nn.Parameter(_initial_filters(dim, count))
        self.log_alpha = nn.Parameter(torch.full((count,), 1.5).log())

    def forward(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N,)``."""
        return -(0.5 * (x @ self.filters.T).square()).log1p() @ self.log_alpha.exp()

    def initial(self, x: Tensor) -> Theta:
        """Filters in units of the columns."""
        count, dim = self.filters.shape
        return {"filters": in_units(self.filters, _initial_filters(dim, count), x)}

    def degrees_of_freedom(self, theta: Theta) -> Tensor:
        """``2 alpha - 1`` for each expert, for `FitResult.function`."""
        return 2 * theta["log_alpha"].exp() - 1


def _initial_filters(dim: int, count: int) -> Tensor:
    """Rows of cosines, no two of them parallel; the identity where there are D of them."""
    if count == dim:
        return torch.eye(dim)
    k = torch.arange(count)[:, None] + 0.5
    return torch.cos(torch.pi * k * (torch.arange(dim) + 0.25) / max(count, dim))

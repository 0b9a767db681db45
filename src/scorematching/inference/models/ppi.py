"""Polynomially tilted pairwise interaction on the simplex."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scorematching.domains import Simplex
from scorematching.domains.base import Region
from scorematching.inference.models.base import NamedModel, Symmetric, powers_below
from scorematching.inference.parameters import Theta


class PPI(NamedModel):
    """Pairwise interactions of proportions, tilted by powers of them.

    ``log p = x_L' A x_L + b.x_L + sum_i beta_i log x_i``, with x_L all proportions but the last.
    With A = b = 0 it is the Dirichlet distribution with parameters ``beta + 1``. The score is
    linear in the parameters.

    Args:
        dim: D, number of proportions.
        beta: fixed powers above -1, one for each proportion; None estimates them.
        linear: whether there is a term ``b.x_L``.
        interaction: whether there is a term ``x_L' A x_L``.
        domain: the simplex with a weight; by default the squared distance from the boundary,
            without a cap. Scealy and Wood have a cap of 0.01, which suits proportions with many
            zeros only.

    Reference: Scealy and Wood (2023), Score matching for compositional distributions.

    Example:
        >>> model = PPI(3, beta=[-0.5, 0.0, 0.0])
        >>> model.entry_names()["A"]
        ['A[0,0]', 'A[0,1]', 'A[1,1]']
    """

    beta: Tensor

    def __init__(
        self,
        dim: int,
        beta: Any = None,
        linear: bool = False,
        interaction: bool = True,
        domain: Region | None = None,
    ) -> None:
        """Start at the tilt alone."""
        super().__init__(dim, Simplex() if domain is None else domain)
        if dim < 2:
            raise ValueError(f"dim must be at least 2, got {dim}; proportions sum to one")
        self._symmetric = Symmetric(dim - 1)
        self.A = nn.Parameter(torch.zeros(dim * (dim - 1) // 2), requires_grad=interaction)
        self.b = nn.Parameter(torch.zeros(dim - 1), requires_grad=linear)
        if beta is None:
            self.beta = nn.Parameter(torch.zeros(dim))
        else:
            self.register_buffer("beta", _powers(beta, dim))

    def entry_names(self) -> dict[str, list[str]]:
        """Entries of A by row and column."""
        return {"A": self._symmetric.names("A")}

    def forward(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N,)``."""
        inner = x[:, :-1]
        return self._symmetric.form(self.A, inner) + inner @ self.b + x.log() @ self.beta.to(x)

    def interaction_matrix(self, theta: Theta) -> Tensor:
        """A, ``(D - 1, D - 1)``, for `FitResult.function`."""
        return self._symmetric.matrix(theta["A"])

    def too_steep(self, theta: Theta) -> list[str]:
        """``x^beta`` has a finite integral near zero above -1 only."""
        return powers_below(theta, "beta")


def _powers(beta: Any, dim: int) -> Tensor:
    found = torch.as_tensor(beta, dtype=torch.float64)
    if found.shape != (dim,) or not bool((found > -1).all() & found.isfinite().all()):
        raise ValueError(
            f"beta must hold {dim} numbers above -1, got {beta!r}; None estimates them"
        )
    return found

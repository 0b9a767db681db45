"""What the models share: names of entries, symmetric matrices by their upper triangle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scorematching._checks import check_count
from scorematching.domains.base import Region
from scorematching.inference.parameters import Theta


class NamedModel(nn.Module):
    """A log-density ``(N, D) -> (N,)`` whose parameters have names by entry.

    Args:
        dim: D.
        domain: where points live; `inference.fit` uses it unless it is given another one.
    """

    normalised = False

    def __init__(self, dim: int, domain: Region | None = None) -> None:
        """Keep both."""
        super().__init__()
        check_count(dim, "dim", "it is the number of columns of X")
        self.dim = dim
        self.domain = domain

    def entry_names(self) -> dict[str, list[str]]:
        """Names of the entries of parameters, where an index would not say enough."""
        return {}

    def initial(self, x: Tensor) -> dict[str, Tensor]:
        """Parameters whose initial values depend on the points ``(N, D)``."""
        return {}

    def too_steep(self, theta: Theta) -> list[str]:
        """Names of estimates with which the function has no finite integral near the boundary."""
        return []


def in_units(filters: Tensor, first: Tensor, x: Tensor) -> Tensor:
    """Filters in units of the columns of x; those that are not the first ones stay as they are.

    Far from the scale of the points, fits end in minima with peaks on single points.
    """
    if not torch.equal(filters.detach(), first.to(filters)):
        return filters.detach()
    scale = x.square().nanmean(0).sqrt()
    return first / torch.where(scale > 0, scale, 1.0)


def powers_below(theta: Theta, name: str) -> list[str]:
    """Names of the entries of a vector of powers that are -1 or less."""
    powers = theta.get(name, torch.zeros(0))
    return [f"{name}[{i}]" for i in (powers <= -1).nonzero()[:, 0].tolist()]


class Symmetric:
    """Symmetric ``(D, D)`` matrices by the entries on and above their diagonal.

    Args:
        dim: D.
        drop_last: leave out the last diagonal entry, which is zero then.

    Example:
        >>> Symmetric(2).matrix(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [[1.0, 2.0], [2.0, 3.0]]
        >>> Symmetric(2).names("A")
        ['A[0,0]', 'A[0,1]', 'A[1,1]']
    """

    def __init__(self, dim: int, drop_last: bool = False) -> None:
        """List the entries."""
        self.dim = dim
        count = dim * (dim + 1) // 2 - drop_last
        self.rows, self.columns = torch.triu_indices(dim, dim)[:, :count]

    def names(self, name: str) -> list[str]:
        """One for each entry."""
        pairs = zip(self.rows.tolist(), self.columns.tolist())
        return [f"{name}[{i},{j}]" for i, j in pairs]

    def identity(self) -> Tensor:
        """The entries of the identity matrix."""
        return (self.rows == self.columns).to(torch.get_default_dtype())

    def form(self, entries: Tensor, x: Tensor) -> Tensor:
        """``x' A x``, ``(N,)``, without the products of all pairs of columns."""
        return ((x @ self.matrix(entries)) * x).sum(-1)

    def matrix(self, entries: Tensor) -> Tensor:
        """The matrix itself, ``(D, D)``."""
        upper = entries.new_zeros(self.dim, self.dim).index_put((self.rows, self.columns), entries)
        return upper + upper.triu(1).T

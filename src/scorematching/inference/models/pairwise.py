"""Pairwise power interactions of positive variables, the "a-b" models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scorematching._checks import is_number
from scorematching.domains import PositiveOrthant
from scorematching.domains.base import Region
from scorematching.inference.models.base import NamedModel, Symmetric, powers_below
from scorematching.inference.parameters import Theta


class PairwiseInteraction(NamedModel):
    """Pairwise interactions of powers, ``log p = -x^a' K x^a / (2a) + linear.x^b / b``.

    A power of zero stands for the logarithm: ``x^b / b`` becomes ``log x`` for b = 0, and the
    first term ``-log x' K log x / 2`` for a = 0. The score is linear in the parameters.

    ====================================  ===  ===
    model                                  a    b
    ====================================  ===  ===
    truncated normal                       1    1
    exponential square root                .5   .5
    gamma                                  .5   0
    ====================================  ===  ===

    Args:
        dim: D.
        a: power of the interactions, not negative.
        b: power of the linear term, not negative.
        domain: where points live; by default the positive orthant, with the weight
            ``min(x^2, 1)`` if a power is below one. With ``min(x, 1)`` gradients of the loss have
            an infinite variance then, for the gamma distribution up to a shape of two.

    Reference: Inouye, Ravikumar and Dhillon (2016); Yu, Drton and Shojaie (2019, 2022).

    Example:
        The gamma distribution with shape ``linear + 1`` and rate K.

        >>> model = PairwiseInteraction(1, a=0.5, b=0.0)
        >>> round(model(torch.tensor([[2.0]])).item(), 4)  # -K x at K = 1
        -2.0
    """

    def __init__(
        self, dim: int, a: float = 1.0, b: float = 1.0, domain: Region | None = None
    ) -> None:
        """Start without interactions."""
        for name, value in (("a", a), ("b", b)):
            if not is_number(value) or not 0 <= value < torch.inf:
                raise ValueError(
                    f"{name} must be a number of at least 0, got {value!r}; 0 is the logarithm"
                )
        h = "min(x, 1)" if min(a, b) >= 1 else "min(x^2, 1)"
        super().__init__(dim, PositiveOrthant(h) if domain is None else domain)
        self.a, self.b = float(a), float(b)
        self._symmetric = Symmetric(dim)
        self.linear = nn.Parameter(torch.zeros(dim))
        self.interaction = nn.Parameter(self._symmetric.identity())

    @classmethod
    def exponential_square_root(cls, dim: int, domain: Region | None = None) -> PairwiseInteraction:
        """The model with a = b = 1/2."""
        return cls(dim, 0.5, 0.5, domain)

    @classmethod
    def gamma(cls, dim: int, domain: Region | None = None) -> PairwiseInteraction:
        """The model with a = 1/2, b = 0."""
        return cls(dim, 0.5, 0.0, domain)

    def entry_names(self) -> dict[str, list[str]]:
        """Entries of K by row and column."""
        return {"interaction": self._symmetric.names("interaction")}

    def forward(self, x: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N,)``."""
        scale = self.a or 1.0
        pairs = self._symmetric.form(self.interaction, _power(x, self.a) * scale)
        return _power(x, self.b) @ self.linear - pairs / (2 * scale)

    def interaction_matrix(self, theta: Theta) -> Tensor:
        """K ``(D, D)``, for `FitResult.function`."""
        return self._symmetric.matrix(theta["interaction"])

    def too_steep(self, theta: Theta) -> list[str]:
        """For b = 0, ``x^linear`` has a finite integral near zero above -1 only, unless a = 0."""
        return powers_below(theta, "linear") if self.b == 0 < self.a else []


def _power(x: Tensor, power: float) -> Tensor:
    """``x^p / p``, or ``log x`` for p = 0."""
    return x.log() if power == 0 else x.pow(power) / power

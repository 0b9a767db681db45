"""The normal distribution truncated to a domain."""

from __future__ import annotations

from scorematching.domains import PositiveOrthant
from scorematching.domains.base import Region
from scorematching.inference.models.gaussian import Gaussian


class TruncatedGaussian(Gaussian):
    """The normal distribution restricted to a domain, by default the positive orthant.

    Args:
        dim: D.
        centred: fix the mean of the normal distribution at zero.
        domain: where points live.

    Example:
        >>> import torch
        >>> from scorematching.inference import fit
        >>> x = torch.tensor([[1.0], [2.0], [0.5], [3.0]])
        >>> [*fit(TruncatedGaussian(1), x).params]
        ['linear[0]', 'precision[0,0]']
    """

    def __init__(self, dim: int, centred: bool = False, domain: Region | None = None) -> None:
        """Start at the standard normal distribution."""
        super().__init__(dim, centred, PositiveOrthant() if domain is None else domain)

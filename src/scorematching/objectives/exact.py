"""Exact score matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from scorematching._checks import check_count
from scorematching._shapes import event_axes, flatten_event
from scorematching.domains.base import Region, check_domain, restrict
from scorematching.fields import Field
from scorematching.objectives.base import Objective
from scorematching.types import Terms


@dataclass(frozen=True)
class ScoreMatching(Objective):
    """Score matching with the exact trace of the Hessian.

    ``J = tr grad s + 0.5 |s|^2``, whose mean over data is the Fisher divergence to the data up to
    a constant. Cost: D second-order passes; the sliced objectives need M.

    Args:
        max_memory: bytes that the directions may take at one time; None leaves it to the library.
            Less memory means more chunks, not another answer.
        domain: where the points live, such as `domains.PositiveOrthant`; None for all of R^D.

    Reference: Hyvarinen (2005); Song et al. (2019), Eq. (2) and Algorithm 2.

    Example:
        >>> import torch
        >>> x = torch.ones(1, 3)
        >>> ScoreMatching()(lambda x: -0.5 * x.square().sum(-1), x).item()  # 0.5 * 3 - 3
        -1.5
    """

    max_memory: int | None = None
    domain: Region | None = None

    def __post_init__(self) -> None:
        if self.max_memory is not None:
            check_count(self.max_memory, "max_memory", "it is a number of bytes, such as 2**30")
        check_domain(self.domain)

    def terms(self, field: Field, x: Tensor, noise: Any = None) -> Terms:
        """First: the score ``(N, *F, D)``; second: its divergence."""
        field = restrict(field, self.domain)
        score, divergence = field.score_and_divergence(x, self.max_memory)
        return Terms(flatten_event(score, event_axes(x)), divergence)

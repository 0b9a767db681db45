"""A question about a model, with two ways to answer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Pair = tuple[Tensor, Tensor]
Way = Callable[..., Pair]
"""``(model, x, *arguments) -> (score, curvature or divergence)``."""


@dataclass(frozen=True)
class Question:
    """A question with two ways to answer it.

    Attributes:
        name: "curvature" or "divergence".
        traced: by the engine.
        reverse: by double backward.
        probe: the engine's curvature along directions, ``(model, x, v)``, to be checked.
        probe_reverse: that by double backward.
    """

    name: str
    traced: Way
    reverse: Way
    probe: Way | None = None
    probe_reverse: Way | None = None

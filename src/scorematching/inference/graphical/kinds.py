"""Pairwise interaction models and their score-matching losses, which are quadratic.

The log-density is ``-x^a' K x^a / (2 a) + eta' x^b / b`` (``eta' log x`` for b = 0), with powers of
each coordinate:

===============  ======  ======  ============  ============================================
kind             a       b       points        model
===============  ======  ======  ============  ============================================
``gaussian``     1       1       all           normal, K its precision
``truncated``    1       1       x >= 0        normal truncated to positive coordinates
``exponential``  1/2     1/2     x > 0         exponential square-root graphical model
``gamma``        1/2     0       x > 0         gamma graphical model
===============  ======  ======  ============  ============================================

Reference: Yu, Drton and Shojaie (2019), *Generalized score matching for non-negative data*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching._checks import check_positive


@dataclass(frozen=True)
class Kind:
    """Powers a and b of an interaction model, and whether its points are positive."""

    a: float
    b: float
    positive: bool

    def score(self, x: Tensor, K: Tensor, eta: Tensor) -> Tensor:
        """``-x_j^(a-1) k_j.x^a + eta_j x_j^(b-1)``, ``(N, D) -> (N, D)``."""
        if not self.positive:
            return eta - x @ K
        return eta * x ** (self.b - 1) - x ** (self.a - 1) * (x**self.a @ K)

    def log_density(self, x: Tensor, K: Tensor, eta: Tensor) -> Tensor:
        """The log-density up to a constant, ``(N, D) -> (N,)``."""
        y = x**self.a if self.positive else x
        linear = x.log() if self.b == 0 else (x**self.b / self.b if self.positive else x)
        return linear @ eta - 0.5 / self.a * ((y @ K) * y).sum(-1)


KINDS = {
    "gaussian": Kind(a=1.0, b=1.0, positive=False),
    "truncated": Kind(a=1.0, b=1.0, positive=True),
    "exponential": Kind(a=0.5, b=0.5, positive=True),
    "gamma": Kind(a=0.5, b=0.0, positive=True),
}


@dataclass(frozen=True)
class Weight:
    """The weight ``h(x) = min(x^q, c)`` or ``min(log(1 + x), c)`` of generalised score matching.

    It vanishes at the boundary, where integration by parts would leave a term.

    Args:
        name: "x", "x^2" or "log".
        cut: c.
    """

    name: str
    cut: float

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_positive(self.cut, "cut", "3 standard deviations suit most data")
        if self.name not in ("x", "x^2", "log"):
            raise ValueError(
                f'weight must be "x", "x^2" or "log", got {self.name!r}; "x" is min(x, cut)'
            )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``h(x)`` and ``h'(x)`` at every entry; the mean of both slopes at the cut."""
        if self.name == "log":
            h, slope = torch.log1p(x), 1 / (1 + x)
        elif self.name == "x^2":
            h, slope = x**2, 2 * x
        else:
            h, slope = x, torch.ones_like(x)
        below = 0.5 * ((h < self.cut).to(h) + (h <= self.cut).to(h))
        return h.clamp(max=self.cut), below * slope


def find_kind(name: str) -> Kind:
    """The kind by its name."""
    if name not in KINDS:
        names = ", ".join(f'"{known}"' for known in KINDS)
        raise ValueError(f'kind must be one of {names}, got {name!r}; "gaussian" takes all points')
    return KINDS[name]


def check_domain(x: Tensor, kind: Kind, name: str) -> None:
    """Require points where the model has a density."""
    if not kind.positive:
        return
    zero = kind.a == 1  # the score is finite at zero
    bad = ((x < 0) | ((x == 0) & (not zero))).any(1).nonzero()[:, 0]
    if len(bad):
        rows = ", ".join(str(int(i)) for i in bad[:5]) + (", ..." if len(bad) > 5 else "")
        wanted = "non-negative" if zero else "positive"
        raise ValueError(
            f'X must be {wanted} for kind="{name}", got other entries in {len(bad)} rows '
            f"({rows}); drop these rows, or use another kind"
        )

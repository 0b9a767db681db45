"""Check what an entry states: look for jumps of the score and of its derivative along lines.

With nodes at a distance h, the second difference of a smooth function shrinks fourfold when h is
halved, that of a function whose derivative jumps twofold, and that of a function that jumps not
at all. This needs no second derivatives, so it does not depend on what torch or the library can
differentiate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.zoo.entry import Model, seeded

NODES = 1024
LENGTH = 2.0
MAX_LINES = 4
ROWS = 4096
"""Points that are evaluated in one call."""


@dataclass(frozen=True)
class Roughness:
    """Second differences of the score along lines, relative to its size, and their rate."""

    size: float
    rate: float

    @property
    def kinked(self) -> bool:
        """Whether second differences are too large, and shrink too slowly, for a smooth score."""
        return self.size > 2e-5 and self.rate < 3.0


def roughness(
    model: Model, one_by_one: bool = False, length: float = LENGTH, directions: int = 1
) -> Roughness:
    """The roughest of a few lines through the points, evaluated in batches or one by one."""
    model = replace(model, call=seeded(model.call))
    rows = 1 if one_by_one else max(1, ROWS // max(model.x[0].numel(), 1))
    seeds = range(7, 7 + directions)
    lines = [_along_line(model, x, rows, length, k) for x in model.x[:MAX_LINES] for k in seeds]
    rough = [r for r in lines if r.kinked]
    return min(rough, key=lambda r: r.rate) if rough else max(lines, key=lambda r: r.size)


def _along_line(model: Model, x: Tensor, rows: int, length: float, seed: int) -> Roughness:
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    u = u / u.abs().max()
    t = torch.linspace(-length / 2, length / 2, 2 * NODES + 1).reshape(-1, *[1] * x.ndim)
    score = torch.cat([_score(model, part) for part in (x + t * u).split(rows)])
    along = (score * u).flatten(1).sum(-1)
    coarse, fine = _largest(along[::2]), _largest(along)
    return Roughness(fine / max(float(along.abs().max()), 1e-3), coarse / max(fine, 1e-300))


def _score(model: Model, x: Tensor) -> Tensor:
    if model.kind == "vector":
        with torch.no_grad():
            return model.call(x).detach()
    x = x.detach().requires_grad_()
    return torch.autograd.grad(model.call(x).sum(), x)[0]


def _largest(values: Tensor) -> float:
    return float(values.diff(n=2).abs().max())

"""Whether derivatives are those of the values: part of a model may be cut from the graph.

By the fundamental theorem of calculus a log-density, or the score that a network returns, changes
along a line by the integral of its derivative. Where a value went through ``detach``, ``no_grad``
or numpy it does not, however short the line. Every route of automatic differentiation makes the
same cut, so comparing routes does not show it. The same holds of a score that is trained on and
its derivative. (Curvatures are compared with differences of the score, see `verification`.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching.derivatives.smoothness.search import Lines, quadrature

MISMATCH = 2e-3
"""Share of the change along the median line that must be unexplained for a model to count as cut.

Rounding and quadrature leave far less in smooth models, and a norm, gate or attention weight that
is detached leaves more.
"""

SHORT = {torch.float64: 1e-2}
"""Length of the parts that decide, in which steep functions vary little, in ordinary lines."""

SHORT_OTHERWISE = 0.1
"""The same in single precision, where shorter changes are lost to rounding."""

SHORTER = 1e-4
"""Length of the parts on which a score is compared with its derivative, in double precision."""


SHORTEST = {torch.float64: 1e-8}
"""Length down to which parts are shortened where a model oscillates many times on longer ones.

Single precision has no digits for shorter parts than the first.
"""


def is_cut(lines: Lines, levels: Tensor, scales: Tensor) -> bool:
    """Whether values change along most lines by more or less than their derivatives say.

    A model whose first derivative is zero everywhere is left to the routes: they know whether its
    graph misses the points. ``levels`` are those of `Lines.levels` at the nodes of the L lines, and
    ``scales: (levels, L)`` the variation along each line at each level.
    """
    length = SHORT.get(lines.start.dtype, SHORT_OTHERWISE)
    return bool(levels[1].any()) and _is_cut_at(0, lines, levels, scales, length)


def is_score_cut(lines: Lines, levels: Tensor, scales: Tensor) -> bool:
    """Whether the score of a log-density changes by more or less than its derivative says.

    That is so where a backward pass is itself cut from the graph. The parts are shorter, because a
    sharp bend changes the score more suddenly than the log-density; single precision cannot tell.
    """
    double = lines.start.dtype == torch.float64
    return len(levels) == 3 and double and _is_cut_at(1, lines, levels, scales, SHORTER)


def _is_cut_at(level: int, lines: Lines, levels: Tensor, scales: Tensor, length: float) -> bool:
    """Whether a level changes by more or less than the next says, on lines and their short parts.

    The whole lines, which are known, tell where the short parts need not be evaluated.
    """
    if unexplained(levels[level:], scales[level:], torch.ones(len(lines))) < MISMATCH:
        return False
    while True:
        width = length / lines.times
        short = lines.levels(0.5 + width * (quadrature()[0][:, None] - 0.5))[level:]
        if unexplained(short, scales[level:], width) < MISMATCH:
            return False
        length /= 100
        if length < SHORTEST.get(lines.start.dtype, 1.0) or not _varies(short[1]):
            return True


def _varies(slope: Tensor) -> bool:
    """Whether a derivative ``(K, L)`` varies on most parts, so that no quadrature is right."""
    change, size = slope.amax(0) - slope.amin(0), slope.abs().amax(0)
    return bool((change > 0.5 * size).double().mean() > 0.5)


def unexplained(levels: Tensor, scales: Tensor, width: Tensor) -> float:
    """The share of the change over a part of the median line that the integral does not explain.

    Parts have a share ``width: (L,)`` of their lines. Changes count as a tenth of an even share of
    the variation along the line at least.
    """
    change, slope = levels[0].diff(dim=0), width * levels[1]
    error = (change - quadrature()[1] @ slope).sum(0).abs()
    size = change.abs().sum(0) + slope.abs().mean(0)
    share = error / torch.maximum(size, 0.1 * width * scales[0])
    return float(share.nan_to_num(0.0).median())

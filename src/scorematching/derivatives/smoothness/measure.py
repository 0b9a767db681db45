"""How smooth a score is, measured along short lines through the user's points.

A search (see `search`) proposes short intervals of lines that may hold a kink; a test
at six points around each of them decides. Towards a jump the values on its two sides go on
differing by the same amount; where a function is smooth they differ 8 times less when they are 8
times closer. A smooth function with sharp bends therefore passes, and so does a comparison or a
maximum that leaves no kink in the model.

Error rates, over 200 random networks of each kind on random data (tests/derivatives): in double
precision no smooth network was called kinked; kinks were missed only where they change the score
or its derivative by less than 1e-5 of their variation. A kink that one line in 20 meets is found
with probability 0.96, and above 0.999 if it has a mask.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scorematching._precision import at_least_single, without_autocast
from scorematching.derivatives.smoothness.consistency import is_cut, is_score_cut
from scorematching.derivatives.smoothness.probe import Model, Probe, agree
from scorematching.derivatives.smoothness.search import (
    LENGTH,
    NEAR,
    Accuracy,
    Intervals,
    Lines,
    bisect,
    draw_lines,
    quadrature,
    subdivide,
)

WEAK = 0.045
"""A jump of the score's derivative by less than this share of its variation makes a close call.

It biases the parameter gradient by less than half a percent: 0.2 to 0.4 percent for flows whose
scales are clipped by ``a / (1 + |a| / c)``, whose jumps are up to 0.03. The jumps of networks with
ELU, CELU, SELU, softsign or squared ReLU units were 0.05 to 1.4 at widths from 8 to 512.
"""

POLE = 2.0
"""A change by more than this many times the variation is no jump, but leads to infinity.

That matters between the points, and not on lines that lead away from them.
"""

NEARLY = 0.01
"""A change by this share of the variation, within `search.NARROW` of a line, counts as a jump.

The root of ``z^2 + 1e-10`` is smooth, but no point of a data set falls into its bend: without that
curvature the mean loss is as wrong as that of ``|z|``. The same holds of a log-density that rises
as suddenly, such as a sigmoid of ``1e7 z``.
"""

ACTIVATIONS = ("elu", "celu", "selu", "relu", "softsign", "hardtanh", "hardswish", "hardsigmoid")
"""Activation functions with kinks: their jumps count however small they are."""


@dataclass(frozen=True)
class Measurement:
    """How smooth a score is around the points where it was measured.

    Attributes:
        order: -1 if the score jumps, 0 if its derivative jumps, 1 if no jump of either was found.
        defect: size of the jump relative to the variation along the line; where none was found,
            the largest relative error of the fundamental theorem of calculus that remained.
        lines: number of lines that were evaluated.
        skipped: number of lines left out because the model was not finite on them.
        close_call: whether the evidence was close to that for another order.
        suspects: operations that may have caused the jump, and where they were called.
        precision: data type of the evaluations.
        note: why nothing was measured, if that is so; the order is then 1.
        cut: whether derivatives are not those of the values, because part of the model is cut from
            the graph.
        score_cut: whether the derivative of a log-density's score is not that of its values.
        unresolved: whether the last digit of the points changes the model's values.

    Example:
        >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> measure(lambda x: -x.abs().sum(-1), x, "log-density").order
        -1
    """

    order: int
    defect: float
    lines: int
    skipped: int
    close_call: bool
    suspects: tuple[str, ...]
    precision: str
    note: str = ""
    cut: bool = False
    score_cut: bool = False
    unresolved: bool = False

    def __str__(self) -> str:
        """One sentence with the numbers."""
        if self.note:
            return f"smoothness was not measured: {self.note}"
        if self.unresolved:
            return f"the last digit of the points, in {self.precision}, changes the model's values"
        if self.cut:
            return "the model does not change as its derivatives say"
        found = {
            -1: f"the score jumps, by {self.defect:.1e} of its variation",
            0: f"the derivative of the score jumps, by {self.defect:.1e} of its variation",
            1: f"no jump of the score or its derivative (relative error {self.defect:.1e})"
            if not self.suspects
            else f"a weak jump of the score's derivative, by {self.defect:.1e} of its variation",
        }[self.order]
        blame = f"; suspects: {', '.join(self.suspects)}" if self.suspects else ""
        doubt = " (a close call)" if self.close_call else ""
        return f"{found}, on {self.lines} lines in {self.precision}{doubt}{blame}"


def measure(
    call: Model,
    x: Tensor,
    kind: str,
    generator: torch.Generator | None = None,
) -> Measurement:
    """Measure the smoothness of a model's score around points ``x: (N, *event)``.

    Lines go from one point towards another, so they stay in the convex hull of the points.
    Cost: about that of ten training steps with N points.

    Args:
        call: log-density ``(N, *event) -> (N,)``, or ``(N, *F)`` for features, of which a random
            combination is measured; or vector field ``(N, *event) -> (N, *event)``.
        x: points at which the model is used.
        kind: "log-density", whose gradient is the score, or "vector field", which is the score.
        generator: source of the lines; by default one with a fixed seed.
    """
    if torch.is_autocast_enabled(x.device.type):  # steps of half precision look like kinks
        with suppress(Exception), without_autocast(x):  # not every model runs without
            return measure(call, at_least_single(x), kind, generator)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.inference_mode(False):
        plain = Probe(call, x, kind == "log-density", False, generator)
        if plain.is_random:
            return _nothing(plain, 0, "the model's values differ at the same points and state")
        with suppress(Exception):  # not every model runs in double precision
            double = Probe(call, x, kind == "log-density", True, generator)
            if agree(double.value, plain.value, 1e-2):
                return _measure(double, generator)
            if not plain.resolves_points:
                return replace(_nothing(plain, 0, ""), unresolved=True)
        return _measure(plain, generator)


def _measure(probe: Probe, generator: torch.Generator, outward: bool = True) -> Measurement:
    """The measurement; lines that lead away from few points may do so with ``outward`` only."""
    accuracy = Accuracy.of(probe.x.dtype)
    lines, flips = draw_lines(probe, generator, outward)
    try:
        levels = lines.levels(quadrature()[0][:, None].expand(-1, len(lines)))
    except Exception:  # the model may refuse points outside its support
        if not outward:
            raise
        return _measure(probe, generator, outward=False)
    finite = levels.isfinite().flatten(0, 1).all(0)
    skipped = int((~finite).sum())
    if not finite.any():
        return _nothing(probe, skipped, "the model is not finite on any line between the points")
    lines, flips, levels = lines[finite], flips[finite], levels[..., finite]
    scales = _scales(levels, lines.times == 1, accuracy)
    verdict = _decide(lines, bisect(lines, flips, accuracy), scales, accuracy)
    defect = 0.0
    if verdict.order > -1:
        intervals, narrow, defect, sharp = subdivide(lines, levels, scales[-2], accuracy)
        second = _decide(lines, intervals, scales, accuracy)
        close = verdict.close_call or second.close_call
        verdict = min(verdict, second, key=lambda v: (v.order, -v.size))
        third = _decide(lines, narrow, scales, replace(accuracy, jump=NEARLY))
        if third.order < min(verdict.order, 0):
            close, verdict = True, third
        verdict = replace(verdict, close_call=close or (sharp and verdict.order == 1))
    if verdict.order > -1 and probe.is_density:
        steps, narrow, _, _ = subdivide(lines, levels, scales[0], accuracy, level=0)
        for intervals, jump in ((steps, accuracy.jump), (narrow, NEARLY)):
            step = _decide(lines, intervals, scales, replace(accuracy, jump=jump))
            verdict = min(verdict, step, key=lambda v: v.order)
    if outward and verdict.size > POLE:
        return _measure(probe, generator, outward=False)
    found, suspects = verdict.order < 1, _suspects(probe, verdict)
    if verdict.order == 0 and verdict.size < WEAK and not _has_activation(suspects):
        verdict = replace(verdict, order=1, close_call=True)
    return Measurement(
        verdict.order,
        verdict.size if found else defect,
        len(lines),
        skipped,
        verdict.close_call,
        suspects,
        _precision(probe),
        cut=not found and is_cut(lines, levels, scales),
        score_cut=not found and is_score_cut(lines, levels, scales),
    )


def _has_activation(suspects: tuple[str, ...]) -> bool:
    """Whether a jump comes from an activation function, which is easily replaced."""
    return any(name in s.split(" ")[0] for s in suspects for name in ACTIVATIONS)


def _nothing(probe: Probe, skipped: int, note: str) -> Measurement:
    return Measurement(1, math.nan, 0, skipped, True, (), _precision(probe), note)


def _precision(probe: Probe) -> str:
    return str(probe.x.dtype).removeprefix("torch.")


def _scales(levels: Tensor, ordinary: Tensor, accuracy: Accuracy) -> Tensor:
    """Variation along each line at each level, ``(levels, K, L) -> (levels, L)``.

    At least that of the median line of ordinary length counts.
    """
    variation = _variation(levels, accuracy)
    typical = variation[:, ordinary] if ordinary.any() else variation
    return torch.maximum(variation, typical.median(-1, keepdim=True).values)


def _variation(levels: Tensor, accuracy: Accuracy) -> Tensor:
    """The same, but at least a share of the value itself."""
    variation = levels.diff(dim=1).abs().sum(1)
    variation[-1] += variation[-2]  # the integral of |g'| is at least the change of g
    variation += torch.cat([levels[1:], levels[-1:]]).abs().mean(1)
    return torch.maximum(variation, accuracy.flat * levels.abs().amax(1)).clamp(min=1e-300)


@dataclass(frozen=True)
class _Verdict:
    """The most serious jump in a set of intervals, and its line, left end and width."""

    order: int
    size: float
    close_call: bool
    interval: tuple[Lines, float, float] | None


def _decide(lines: Lines, intervals: Intervals, scales: Tensor, accuracy: Accuracy) -> _Verdict:
    """Test intervals for jumps; a jump has to be found twice, because rounding errors are not."""
    if not len(intervals.line):
        return _Verdict(1, 0.0, False, None)
    lines, intervals, scales = _on_parts(lines, intervals, scales, accuracy)
    order, size, close = _test(lines, intervals, scales, accuracy, 1.0)
    found = (order < 1).nonzero().flatten()
    if len(found):
        again, _, _ = _test(lines, intervals[found], scales, accuracy, 1.4)
        order[found] = torch.maximum(order[found], again)
    if not (order < 1).any():
        return _Verdict(1, 0.0, bool(close.any()), None)
    k = min(range(len(order)), key=lambda k: (int(order[k]), -float(size[k])))
    interval = lines[intervals.line[k : k + 1]], float(intervals.low[k]), float(intervals.width[k])
    return _Verdict(int(order[k]), float(size[k]), bool(close[k]), interval)


def _on_parts(
    lines: Lines, intervals: Intervals, scales: Tensor, accuracy: Accuracy
) -> tuple[Lines, Intervals, Tensor]:
    """Intervals on parts, of ordinary length, of the lines that lead away from few points.

    A jump is judged by its share of the variation around it, and a longer line has more of that.
    Further away than `NEAR`, where hardly a point will lie, the whole line counts.
    """
    if not (lines.times[intervals.line] > 1).any():
        return lines, intervals, scales
    long = lines[intervals.line]
    share = torch.where(intervals.low * long.times < NEAR / LENGTH, 1 / long.times, 1.0)
    low = (intervals.low + (intervals.width - share) / 2).clamp(min=0).minimum(1 - share)
    parts, nodes = long.parts(low, share), quadrature()[0]
    variation = _variation(parts.levels(nodes[:, None].expand(-1, len(parts))), accuracy)
    scales = torch.maximum(variation.nan_to_num(0.0), scales.amin(-1, keepdim=True))
    begins, width = (intervals.low - low) / share, intervals.width / share
    line = torch.arange(len(parts))
    return parts, replace(intervals, line=line, low=begins, width=width), scales


def _test(
    lines: Lines, intervals: Intervals, scales: Tensor, accuracy: Accuracy, distance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Order, relative size of the jump, and whether that is a close call, for every interval.

    The points are 1, 8 and 64 times `distance` half widths away from the middle of an interval.
    """
    away = distance * torch.tensor([-64.0, -8.0, -1.0, 1.0, 8.0, 64.0], dtype=torch.float64)
    t = intervals.low + intervals.width * (1 + away[:, None]) / 2
    levels = lines[intervals.line].levels(t)
    change = levels.diff(dim=1).abs()
    inner, outer = change[:, 1:4].amax(1), change[:, [0, 4]].amax(1)
    across = torch.minimum(change[:, 2], (levels[:, 4] - levels[:, 1]).abs())
    scales = scales[:, intervals.line]
    size = torch.maximum(inner * intervals.weight / scales, intervals.defect)
    size = size * (inner > accuracy.rounding * levels.abs().amax(1))
    infinite = (inner > 2 * outer) & (inner > 2 * scales)
    clear = (across > 10 * outer) | infinite
    jumps = clear & (size > accuracy.jump)
    unclear = (inner > 0.6 * outer) & (size > accuracy.jump / 10) & ~jumps
    order = torch.where(jumps[:-1].any(0), -1, 1 - jumps[-1].long())
    size = size.where(jumps, 0)
    size = torch.where(order < 0, size[:-1].amax(0), size[-1])
    worse = torch.where(order == 1, unclear.any(0), unclear[:-1].any(0) & (order == 0))
    return order, size, worse | ((order < 1) & (size < 10 * accuracy.jump))


def _suspects(probe: Probe, verdict: _Verdict) -> tuple[str, ...]:
    """Operations whose mask changes at the jump; if there are none, those that have no mask."""
    if verdict.interval is None:
        return ()
    here, low, width = verdict.interval
    t = torch.tensor([[low], [low + width]], dtype=torch.float64)
    masks = probe.masks(here.points(t), here.rows.repeat(2), places=True)
    changed = [m.operation for m in masks if (m.rows[0] != m.rows[1]).any()]
    found = changed or [m.operation for m in masks if not m.rows.shape[1]]
    return tuple(dict.fromkeys(found))

"""Where a score may jump: short intervals on lines through the user's points.

Along a line ``a + t d`` let ``g(t) = d.s(a + t d)`` and ``g' = d' (ds/dx) d``. There are two ways
to such intervals, and neither decides anything:

* `subdivide` looks for *defects*. Automatic differentiation does not see jumps: where g jumps, its
  change differs from the integral of g' by the jump; where g' jumps, a quadrature formula
  converges slowly. Such lines are subdivided around the error until it is gone or the interval is
  short. A log-density is compared with g in the same way.
* `bisect` looks for *masks* (see `masks`) that differ between the ends of a line. These are
  recorded, without derivatives, on many more lines, which finds kinks that few lines meet.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from scorematching._shapes import dimension, event_axes
from scorematching.derivatives.smoothness.probe import Probe

NODES = 8
"""Points at which a line, or a part of one, is evaluated."""

LENGTH = 0.5
"""Length of a line in standard deviations, root mean square over coordinates."""

SHARP = 1e-5
"""Width, as a part of a line, below which a bend is hardly different from a jump."""

NARROW = 1e-4
"""Width of a bend, as a part of a line, that points of a data set hardly ever fall into."""

FEW_POINTS = 32
"""Below this number of points, lines in random directions join those from point to point."""

OUTWARD = 4.0
"""Length of lines that lead away from few points, in their standard deviations."""

NEAR = 2.0
"""Distance from few points up to which others are expected, in standard deviations."""


@dataclass(frozen=True)
class Accuracy:
    """Thresholds that go with a data type.

    Attributes:
        rounding: error of a value, relative to its size.
        flat: variation, relative to the value, below which there is nothing to measure.
        resolved: error of a quadrature, relative to the variation, that needs no subdivision.
        jump: size of a jump, relative to the variation along the line, that matters.
        width: length of the intervals in which jumps are tested, those found by subdivision.
        mask_width: length of those in which a mask changes.
    """

    rounding: float
    flat: float
    resolved: float
    jump: float
    width: float
    mask_width: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Accuracy:
        """The thresholds of a data type, chosen by the error rates on random networks."""
        if dtype == torch.float64:
            return cls(4e-15, 1e-3, 1e-5, 1e-5, 1e-8, 1e-6)
        eps = torch.finfo(dtype).eps
        return cls(20 * eps, 1e-2, 1e3 * eps, 2e3 * eps, 1e-4, 1e-5)


@dataclass(frozen=True)
class Lines:
    """Lines ``start + t step`` for t in [0, 1].

    Attributes:
        probe: the evaluations.
        start: ``(L, *event)``.
        step: ``(L, *event)``.
        rows: the row of the probe's points that each belongs to, ``(L,)``.
        times: how many times as long as an ordinary line each is, ``(L,)``.
    """

    probe: Probe
    start: Tensor
    step: Tensor
    rows: Tensor
    times: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Lines:
        at = index.to(self.rows.device)
        times = self.times[index.to(self.times.device)]
        return Lines(self.probe, self.start[at], self.step[at], self.rows[at], times)

    def parts(self, low: Tensor, share: Tensor) -> Lines:
        """Parts that begin at ``low: (L,)`` and have a ``share: (L,)`` of the length."""
        times = self.times * share
        low, share = (
            v.reshape(-1, *(1,) * event_axes(self.start)).to(self.start) for v in (low, share)
        )
        return Lines(self.probe, self.start + low * self.step, share * self.step, self.rows, times)

    def points(self, t: Tensor) -> Tensor:
        """``t: (K, L) -> (K L, *event)``."""
        t = t.reshape(*t.shape, *(1,) * event_axes(self.start)).to(self.start)
        return (self.start + t * self.step).flatten(0, 1)

    def levels(self, t: Tensor) -> Tensor:
        """Values and derivatives at ``t: (K, L)``, as ``(levels, K, L)``; see `Probe.levels`."""
        every = torch.arange(len(self), device=self.rows.device).repeat(len(t))
        found = self.probe.levels(self.points(t), self.rows[every], self.step[every])
        return found.cpu().unflatten(1, t.shape)

    def masks(self, t: Tensor) -> list[Tensor]:
        """Masks at ``t: (K, L)``: ``(K, L, bits)`` for each operation that has one."""
        found = self.probe.masks(self.points(t), self.rows.repeat(len(t)))
        return [m.rows.cpu().unflatten(0, t.shape) for m in found]


@dataclass(frozen=True)
class Flips:
    """Masks that differ between the ends of lines.

    Attributes:
        operation: for each line, the index of an operation whose mask differs; -1 if none does.
        count: number of its entries that differ.
        start: masks of all operations at the lines' starts, ``(L, bits)`` each.
    """

    operation: Tensor
    count: Tensor
    start: list[Tensor]

    def __getitem__(self, index: Tensor) -> Flips:
        return Flips(self.operation[index], self.count[index], [m[index] for m in self.start])


@dataclass(frozen=True)
class Intervals:
    """Short intervals of t that may hold a jump.

    Attributes:
        line: indices of their lines.
        low: their left ends.
        width: their lengths.
        weight: what a jump there is multiplied by to account for others on the same line.
        defect: relative error of the fundamental theorem of calculus that led there.
    """

    line: Tensor
    low: Tensor
    width: Tensor
    weight: Tensor
    defect: Tensor

    def __getitem__(self, index: Tensor) -> Intervals:
        return Intervals(*(getattr(self, f.name)[index] for f in fields(self)))

    def and_also(self, more: Intervals) -> Intervals:
        """These intervals and others."""
        pairs = [[getattr(each, f.name) for each in (self, more)] for f in fields(self)]
        return Intervals(*map(torch.cat, pairs))


# Lines.


def draw_lines(
    probe: Probe, generator: torch.Generator, outward: bool = True
) -> tuple[Lines, Flips]:
    """Lines to evaluate; if possible half of them with differing masks, of all operations alike.

    There are about half as many as points, within bounds, so that eight points on each cost less
    than ten training steps.
    """
    x, n = probe.x, len(probe.x)
    count = max(4 * n, min(512, max(64, 65536 // dimension(x)))) // NODES
    count = min(count, 128) if probe.takes_any_rows else math.ceil(min(count, 16) / n) * n
    most = max(count, min(4 * count, 256))
    candidates, masks = _lines_and_masks(probe, most, generator, outward)
    flips = torch.stack([(m[0] != m[1]).sum(1) for m in masks]) if masks else torch.zeros(1, 0)
    chosen = _take_turns(flips, count // 2)
    rest = [i for i in range(len(candidates)) if i not in chosen][: count - len(chosen)]
    index = torch.tensor([*chosen, *rest])
    operation = torch.tensor([*chosen.values(), *(-1 for _ in rest)])
    number = flips[operation, index] if masks else torch.zeros_like(index)
    return candidates[index], Flips(operation, number, [m[0][index] for m in masks])


def _lines_and_masks(
    probe: Probe, count: int, generator: torch.Generator, outward: bool
) -> tuple[Lines, list[Tensor]]:
    """Lines with the masks at both ends.

    Few points say little about their distribution, so lines also lead away from them; where the
    model refuses points out there (outside its support, say), they stay between the points.
    """
    ends = torch.tensor([[0.0], [1.0]]).expand(2, count)
    if outward and len(probe.x) < FEW_POINTS:
        with suppress(Exception):
            lines = _candidates(probe, count, generator, outward=True)
            return lines, lines.masks(ends)
    lines = _candidates(probe, count, generator)
    return lines, lines.masks(ends)


def _take_turns(flips: Tensor, most: int) -> dict[int, int]:
    """Lines with a differing mask, ``flips: (operations, L)``, and for each an operation."""
    chosen: dict[int, int] = {}
    waiting = [row.nonzero().flatten().tolist() for row in flips]
    while any(waiting) and len(chosen) < most:
        for operation, lines in enumerate(waiting):
            if lines and len(chosen) < most:
                chosen.setdefault(lines.pop(), operation)
    return chosen


def _candidates(
    probe: Probe, count: int, generator: torch.Generator, outward: bool = False
) -> Lines:
    """Lines in random order, through all points equally often.

    Each is shortened a little at both ends: points may lie on kinks (at zero, say) that no line
    crosses.
    """
    order = torch.randperm(len(probe.x), generator=generator, device=generator.device)
    rows = order.repeat(math.ceil(count / len(order)))[:count].to(probe.x.device)
    start, step, away = _segments(probe.x.flatten(1), rows, generator, outward)
    start, step = (v.unflatten(1, probe.x.shape[1:]) for v in (start, step))
    times = torch.where(away.cpu(), OUTWARD / LENGTH, 1.0).double()
    return Lines(probe, start + 0.02 * step, 0.96 * step, rows, times)


def _segments(
    x: Tensor, rows: Tensor, generator: torch.Generator, outward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Starts, steps, and which lines lead away.

    Lines go half a standard deviation towards another of the points ``x: (N, D)``. If there are
    few points, lines also start between them, and every second one goes in a random direction,
    within the smallest box around the points or `OUTWARD` standard deviations away. The size of
    coordinates stands for the deviation of a single point.
    """
    n, count = len(x), len(rows)
    spread = x.std(0, correction=0)
    moves = spread > 0
    signs = torch.randint(2, (count, x.shape[1]), generator=generator, device=generator.device)
    signs = 2 * signs.to(x) - 1
    odd = torch.arange(count, device=x.device) % 2 == 1
    if not moves.any():
        size = x.square().mean().sqrt()
        away = odd & outward
        length = torch.where(away, OUTWARD, LENGTH).to(x) * (size if size > 0 else 1)
        return x[rows], length[:, None] * signs, away
    shift = torch.randint(1, n, (count,), generator=generator, device=generator.device)
    across = x[(rows + shift.to(x.device)) % n] - x[rows]
    length = (across / spread.where(moves, 1)).square().sum(1).div(moves.sum()).sqrt()
    step = across * (LENGTH / length.clamp(min=LENGTH))[:, None]
    few = n < FEW_POINTS
    share = torch.rand(count, 1, generator=generator, device=generator.device).to(x)
    start = x[rows] + few * share * (across - step)
    random = few & odd | (length == 0)
    away = OUTWARD * spread * signs if outward else _inside(x, start, LENGTH * spread * signs)
    return start, torch.where(random[:, None], away, step), random & outward


def _inside(x: Tensor, start: Tensor, step: Tensor) -> Tensor:
    """Steps turned round or shortened where they leave the smallest box around the points x."""
    low, high = x.amin(0), x.amax(0)
    end = start + step
    end = torch.where((end < low) | (end > high), start - step, end)
    return end.clamp(low, high) - start


# Defects.


def quadrature() -> tuple[Tensor, Tensor]:
    """Nodes of [0, 1], and weights ``(NODES - 1, NODES)`` of the integrals between neighbours."""
    k = torch.arange(NODES, dtype=torch.float64)
    u = -torch.cos(math.pi * k / (NODES - 1))[:, None]
    integrals = (u ** (k + 1) / (k + 1) / 2).diff(dim=0)
    return (u[:, 0] + 1) / 2, integrals @ torch.linalg.inv(u**k)


def _signatures(nodes: Tensor, weights: Tensor) -> Tensor:
    """Errors in all gaps that a jump of g or of g' in gap j gives: bases ``(j, gaps, 2)``."""
    gap = torch.eye(NODES - 1, dtype=nodes.dtype)
    after = torch.ones_like(gap).tril(-1)
    step = torch.cat([torch.zeros_like(gap[:1]), after + gap])
    bend = nodes.diff()[:, None] * after - weights @ step
    return torch.linalg.qr(torch.stack([gap, bend], -1).transpose(0, 1))[0]


def subdivide(
    lines: Lines, levels: Tensor, scale: Tensor, accuracy: Accuracy, level: int = -2
) -> tuple[Intervals, Intervals, float, bool]:
    """Intervals around defects that no subdivision resolves.

    ``levels`` are those at the nodes of the L lines, ``scale: (L,)`` the variation of g that a
    defect is relative to. ``level`` says which of them g is; the next one is g'.

    Returns:
        The intervals, those that were not resolved at a width of `NARROW`, the largest relative
        error on the other lines, and whether one of them is like a jump down to a width of `SHARP`.
    """
    nodes, weights = quadrature()
    signatures = _signatures(nodes, weights)
    ones = torch.ones_like(scale)
    error, ratio = _defects(levels[level:], weights, ones, scale, accuracy)
    intervals = Intervals(torch.arange(len(lines)), 0 * ones, ones, ones, ratio)
    worst, sharp, most, narrow = 0.0, False, len(lines) // 2, intervals[ratio < 0]
    while True:
        bad = ratio > accuracy.resolved
        worst = max([worst, *ratio[~bad].tolist()])
        keep = ratio.argsort(descending=True)[: min(max(8, most), int(bad.sum()))]
        intervals = intervals[keep]
        if not len(keep) or intervals.width.max() < accuracy.width:
            return intervals, narrow, worst, sharp
        gap = torch.einsum("jki,kl->jil", signatures, error[:, keep]).square().sum(1).argmax(0)
        low = intervals.low + nodes[gap] * intervals.width
        width = nodes.diff()[gap] * intervals.width
        crossed = (width < NARROW) & (intervals.width >= NARROW)
        intervals = replace(intervals, low=low, width=width)
        narrow = narrow.and_also(intervals[crossed])
        levels, most = lines[intervals.line].levels(low + nodes[:, None] * width), most // 2
        least = 0.1 * width * scale[intervals.line]
        error, ratio = _defects(levels[level:], weights, width, least, accuracy)
        large = error.abs().amax(0) > accuracy.jump * scale[intervals.line]
        sharp = sharp or bool((large & (width < SHARP)).any())


def _defects(
    levels: Tensor, weights: Tensor, width: Tensor, least: Tensor, accuracy: Accuracy
) -> tuple[Tensor, Tensor]:
    """Errors ``(gaps, L)`` of the fundamental theorem, and the largest relative one of each line.

    They are relative to the variation of g in the interval, which counts as `least` at least.
    """
    change, bend = levels[0].diff(dim=0), width * levels[1]
    error = change - weights @ bend
    scale = torch.maximum(change.abs().sum(0) + bend.abs().mean(0), least)
    noise = accuracy.rounding / accuracy.resolved * levels[0].abs().amax(0)
    ratio = error.abs().amax(0) / (scale + noise).clamp(min=1e-300)
    return error, ratio.nan_to_num(0.0)


# Masks.


def bisect(lines: Lines, flips: Flips, accuracy: Accuracy) -> Intervals:
    """Intervals in which a mask changes; none if the model's operations are not always the same."""
    line = (flips.operation >= 0).nonzero().flatten()
    flips = flips[line]
    low = torch.zeros(len(line), dtype=torch.float64)
    width = torch.ones_like(low)
    parts = 4 if lines.probe.takes_any_rows else 2  # points of one line need as many batches else
    inside = torch.arange(1, parts, dtype=torch.float64)[:, None] / parts
    while len(line) and width.max() > accuracy.mask_width:
        masks = lines[line].masks(low + inside * width)
        if [m.shape[2] for m in masks] != [m.shape[1] for m in flips.start]:
            return Intervals(line, low, width, low, low)[line[:0]]
        width = width / parts
        low = low + width * _unchanged(masks, flips).cumprod(0).sum(0)
    return Intervals(line, low, width, flips.count.double().sqrt(), torch.zeros_like(low))


def _unchanged(masks: list[Tensor], flips: Flips) -> Tensor:
    """Whether the mask of each line's operation is as at the start, ``(K, L)``, as 0 or 1."""
    same = torch.ones(*masks[0].shape[:2], dtype=torch.long)
    for operation in flips.operation.unique().tolist():
        mine = flips.operation == operation
        same[:, mine] = (masks[operation][:, mine] == flips.start[operation][mine]).all(-1).long()
    return same

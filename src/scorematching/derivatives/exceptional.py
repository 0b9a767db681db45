"""Points at which torch defines a derivative by convention, such as that of abs at zero.

Where a function is smooth all the same, such as ``|z|^2``, every route of automatic
differentiation agrees on a second derivative there that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.derivatives import verification

NUM_SPECIAL = 256
"""Points at which derivatives by convention are looked for, as many as measure smoothness."""

_SCALES = {torch.float64: (1e-3, 2.0**-26), torch.float32: (5e-2, 2.0**-10)}
"""Differences that count, and lengths of steps as shares of the spread."""


def is_exceptional(
    ask: verification.Answer,
    found: tuple[Tensor, Tensor],
    x: Tensor,
    v: Tensor,
    value: Callable[[Tensor], Tensor] | None = None,
    is_log_density: bool = True,
) -> bool:
    """Whether an answer is another at the points than right beside them, on average of both sides.

    At zero torch takes 0 as the derivative of the modulus, for example. So the curvature of a
    smooth function such as ``|z|^2`` is wrong there by every route, at all zeros of a data set.
    ``value`` is the model. Points at which it is another than right beside them, too, are left
    out: a model that takes zeros for padding, say, means another function there. Of a vector field,
    whose value is the score itself, that must be the case (see `_leaves_zeros_out`).
    """
    if x.dtype not in verification.TOLERANCES:
        return False
    signs = verification.fixed_signs(x, seed=4)
    pairs = _conspicuous(ask, found, x, v, signs)
    if not pairs or value is None:
        return bool(pairs)
    jumps = _jumps(value, x, 2.0**-10 * _spreads(x) * signs)
    tolerance = _SCALES[x.dtype][0]
    if any(_stands_out(mine[~jumps], others[:, ~jumps], tolerance) for mine, others in pairs):
        return True
    return not (is_log_density or _leaves_zeros_out(ask, found, x, v, jumps))


def _conspicuous(
    ask: verification.Answer, found: tuple[Tensor, Tensor], x: Tensor, v: Tensor, signs: Tensor
) -> list[Any]:
    """Score and curvature at the points and beside them, if one of them stands out; else none."""
    tolerance, share = _SCALES[x.dtype]
    answers: list[list[Tensor]] = []
    pairs: list[Any] = []
    for length in (_spreads, _sizes):  # the second only where the first is conspicuous
        answers += (sides := _beside(ask, x, v, share * length(x) * signs))
        # With both pairs, which differ from each other by rounding, too.
        pairs = _paired(found, answers)
        if not sides or not any(_stands_out(mine, others, tolerance) for mine, others in pairs):
            return []
    closest = _beside(ask, x, v, _roundings(x) * signs)
    close = _paired(found, closest)
    meets = bool(closest) and all(_meet(mine, others, tolerance) for mine, others in close)
    return [] if meets else pairs


def _leaves_zeros_out(
    ask: verification.Answer, found: tuple[Tensor, Tensor], x: Tensor, v: Tensor, rows: Tensor
) -> bool:
    """Whether a score network takes zeros of the given points for padding.

    Coordinates of zero have a score of zero, add nothing to the curvature, and while they stay
    zero, the answer is ordinary. The loss is then that of the other coordinates alone.
    """
    padding = (x == 0) & (found[0] == 0)
    if not bool(padding[rows].flatten(1).any(1).all()):
        return False
    rest = ~padding
    rest[~rows] = True
    mine, others = found[1][rows], ask(x, v * rest)[1].detach()[rows]
    if not bool((others - mine).abs().max() <= 1e-6 * (mine.abs().max() + others.abs().max())):
        return False
    return not _conspicuous(ask, found, x, v, verification.fixed_signs(x, seed=4) * rest)


def _beside(ask: verification.Answer, x: Tensor, v: Tensor, step: Tensor) -> list[list[Tensor]]:
    """Answers at both sides of the points; none beside the boundary of what the model takes."""
    try:
        return [[t.detach() for t in ask(x + way, v)] for way in (step, -step)]
    except Exception:
        return []


def _paired(found: tuple[Tensor, Tensor], answers: list[list[Tensor]]) -> list[Any]:
    """Score and curvature at the points, each with those beside them, ``(number, *shape)``."""
    return list(zip(found, map(torch.stack, zip(*answers))))


def _jumps(value: Callable[[Tensor], Tensor], x: Tensor, step: Tensor) -> Tensor:
    """The points ``(N,)`` at which a function jumps: it changes as much within a shorter step."""
    here = value(x)
    far, near = (
        ((value(x + h) + value(x - h)) / 2 - here).abs().reshape(len(x), -1).amax(1)
        for h in (step, step / 128)
    )
    noise = 64 * torch.finfo(here.dtype).eps * here.abs().max()
    return (near > noise) & (near > far / 2)


def _spreads(x: Tensor) -> Tensor:
    """The spread of every coordinate; where it is zero, the smallest of the others, or one.

    That of a single point is its distance from zero.
    """
    spreads = x.std(0) if len(x) > 1 else torch.zeros_like(x[0])
    if not bool(spreads.any()):  # copies of one point
        spreads = x[0].abs()
    others = spreads[spreads > 0]
    return torch.where(spreads > 0, spreads, others.min() if len(others) else 1.0)


def _sizes(x: Tensor) -> Tensor:
    """The modulus of every coordinate, or the smallest one above zero; at most its spread.

    A function that is steep beside its points, such as the logarithm at 1e-20, or all of them where
    one point far away makes the spread, is not so within a small part of their size.
    """
    sizes = x.abs()
    smallest = torch.where(sizes > 0, sizes, torch.inf).amin(0)
    return torch.where(sizes > 0, sizes, smallest).minimum(_spreads(x)) * _apart(x)


def _roundings(x: Tensor) -> Tensor:
    """Some units of rounding of every coordinate, or of the smallest one above zero.

    A small part of their size is 1e-3 of it in single precision, which is beyond the whole bend of
    a sharp softplus at points on a lattice.
    """
    return 64 * torch.finfo(x.dtype).eps * x.abs().maximum(_sizes(x)) * _apart(x)


def _apart(x: Tensor) -> Tensor:
    """Factors that differ between coordinates, so that equal ones leave a tie between them."""
    factors = torch.linspace(1, 2, x[0].numel(), dtype=x.dtype, device=x.device)
    return factors.reshape(x[0].shape)


def _stands_out(value: Tensor, others: Tensor, tolerance: float) -> bool:
    """Whether a value differs from the mean of others by more than these do from each other.

    So does one that is NaN or infinite where the others are finite. Entries whose others are not
    all finite, such as those of points on the boundary of a support, say nothing.
    """
    tells = others.isfinite().all(0)
    if not bool(value[tells].isfinite().all()):
        return True
    value, others = value[tells], others[:, tells]
    if not len(value):
        return False
    mean, apart = others.mean(0), others.amax(0) - others.amin(0)
    excess = (value - mean).abs().max() - 2 * apart.max()
    return bool(excess > tolerance * mean.abs().max())


def _meet(value: Tensor, others: Tensor, tolerance: float) -> bool:
    """Whether others close to a value meet it from both sides, as those of a steep function do."""
    tells = others.isfinite().all(0)
    value, others = value[tells], others[:, tells]
    if not len(value):
        return True
    return bool(((others - value).abs() <= tolerance * others.abs().max()).all())  # False for NaN


def special_rows(x: Tensor) -> Tensor:
    """The points at which derivatives by convention are looked for, at most `NUM_SPECIAL`.

    Half of them have the most coordinates of zero, the others come from the whole batch: the first
    points of a batch may be ordinary, and others zeros of sparse data or centres of the model.
    """
    if len(x) <= NUM_SPECIAL:
        return x
    half = NUM_SPECIAL // 2
    zeros = (x == 0).flatten(1).sum(1).topk(half).indices
    return torch.cat([x[zeros], some_rows(x, half)])

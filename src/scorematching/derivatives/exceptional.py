"""Points at which torch defines a derivative by convention, such as that of abs at zero.

Where a function is smooth all the same, such as ``|z|^2``, every route of automatic
differentiation agrees on a second derivative there that is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.derivatives import verification

NUM_SPECIAL = 256
"""Points at which derivatives by convention are looked for, as many as measure smoothness."""


def is_exceptional(
    ask: verification.Answer, found: tuple[Tensor, Tensor], x: Tensor, v: Tensor
) -> bool:
    """Whether an answer is another at the points than right beside them, on average of both sides.

    At zero torch takes 0 as the derivative of the modulus, for example. So the curvature of a
    smooth function such as ``|z|^2`` is wrong there by every route, at all zeros of a data set.
    """
    if x.dtype not in verification.TOLERANCES:
        return False
    tolerance, share = (1e-3, 2.0**-26) if x.dtype == torch.float64 else (5e-2, 2.0**-10)
    signs = verification.fixed_signs(x, seed=4)
    beside: list[list[Tensor]] = []
    # The second and third only where those before are conspicuous.
    for part, length in ((share, _spreads), (share, _sizes), (1.0, _roundings)):
        step = part * length(x) * signs
        try:
            beside += [[t.detach() for t in ask(x + way, v)] for way in (step, -step)]
        except Exception:  # points on the boundary of what the model takes
            return False
        # With all pairs, which differ from each other by rounding, too.
        pairs = zip(found, map(torch.stack, zip(*beside)))
        if not any(_stands_out(mine, others, tolerance) for mine, others in pairs):
            return False
    return True


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

    The part of their size is 1e-3 in single precision, beyond the whole bend of a sharp softplus at
    points on a lattice.
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

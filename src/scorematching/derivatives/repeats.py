"""Whether a model gives the same values for the same points, at every call and in every batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scorematching._checks import can_read_values
from scorematching.derivatives import verification
from scorematching.derivatives.memory import counted, findings_of, owner_of
from scorematching.derivatives.notices import other_values

_FEW = 8
"""Points that are evaluated alone."""


def check_repeats(
    model: Callable[[Tensor], Tensor], x: Tensor, groups: int = 1, limited: bool = False
) -> None:
    """Refuse a model that depends on the other points of a batch, or on the call.

    Batch normalisation and dropout do so in training mode, and recurrent layers that take the axis
    of points for that of time. A few points are evaluated twice, half of them alone, and all with
    another first one.

    Args:
        model: ``(N, *event) -> (N, ...)`` for N a multiple of groups.
        x: points ``(N, *event)``.
        groups: number of consecutive points that belong together.
        limited: evaluate four points only, because memory is limited.

    Raises:
        ValueError: if values differ.
    """
    few = groups * max(1, min(2 if limited else _FEW, len(x) // (2 * groups)))
    points = x[: 2 * few]
    with torch.no_grad(), verification.undone(model, x):
        try:
            # Of copies, since a model may change its points in place.
            batches = (points, points, points[:few], other_first(points, groups))
            first, again, part, after = (model(z.clone()) for z in batches)
        except Exception:  # a context of N rows in a closure; other errors come up again
            return
    if not isinstance(first, Tensor) or not first.is_floating_point() or not first.ndim:
        return  # refused where it is used
    # Rounding of scores, which may be solutions of ill-conditioned systems, can be larger.
    differ = _differ if first.ndim == 1 else verification.differ
    if differ(again, first):
        raise ValueError(
            "the model must give the same values at every call with the same points, got values "
            "that change from call to call (dropout in training mode?); call model.eval()"
        )
    if differ(part, first[:few]) or differ(after[groups:], first[groups:]):
        raise other_values(changes=False)


def other_first(points: Tensor, groups: int = 1) -> Tensor:
    """The points with the last one, or the last group of them, in the place of the first.

    Values of the others show whether they depend on points before them: those of a part of the
    batch that begins like it do not.
    """
    return torch.cat([points[-groups:], points[groups:]])


def check_mode(model: Callable[[Tensor], Tensor], x: Tensor, in_any_mode: bool = False) -> None:
    """`check_repeats` of a module in training mode, or a function of one, at some of its uses.

    For models that are called in loops: the check is made at the 1st, 2nd, 4th, 8th ... use. A
    function may be random for other reasons than its mode, as a score of random batches is.

    Args:
        model: as for `check_repeats`.
        x: points ``(N, *event)``.
        in_any_mode: check other functions, and modules in evaluation mode, too.

    Raises:
        ValueError: if values differ.
    """
    owner = owner_of(model)
    in_training = isinstance(owner, nn.Module) and owner.training
    if not (in_any_mode or in_training) or not can_read_values(x):
        return
    with counted(findings_of(model, "mode").uses, "repeats") as uses:
        if verification.is_due(uses):
            check_repeats(model, x)


def needs_all_rows(call: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a model has a value for all rows only, as with covariates of each in a closure."""
    return not _takes(call, x[:2]) and _takes(call, x)


def _takes(call: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    try:
        with torch.no_grad():
            return len(call(x.clone())) == len(x)
    except Exception:  # of the user's model, which is evaluated again where it matters
        return False


def _differ(a: Tensor, b: Tensor) -> bool:
    """Whether log-densities differ by more than rounding in batches of different sizes."""
    finite = a.isfinite() & b.isfinite()
    size = b[finite].abs().max() if bool(finite.any()) else 0.0
    return bool(((a - b)[finite].abs() > 10 * torch.finfo(b.dtype).eps ** 0.5 * size).any())

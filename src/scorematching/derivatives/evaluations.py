"""Values and scores of a plain model, as the checks of its derivatives need them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from scorematching._checks import can_read_values
from scorematching.derivatives import verification
from scorematching.derivatives.memory import Findings
from scorematching.derivatives.model import Model
from scorematching.derivatives.notices import other_values, own_weights
from scorematching.derivatives.repeats import other_first
from scorematching.errors import WrongDerivativeError

ALIKE = 0.05
"""Share of the usual tolerance for points in two batches of one size, which are rounded alike.

A network of coupled points may be small beside the rest of a log-density.
"""


def score_of(model: Model) -> Callable[[Tensor], Tensor]:
    """The score of the plain model: its gradient, or the vector field itself."""

    def score(x: Tensor) -> Tensor:
        with verification.undone(model.call, x):
            return model.score(x.detach().requires_grad_()).detach()

    return score


def value_at(model: Model, x: Tensor) -> Tensor:
    """The model's output; gradients are on, because a score network may need them."""
    with torch.enable_grad(), verification.undone(model.call, x):
        return model.evaluate(x.detach().requires_grad_()).detach()


def require_usable(model: Model, x: Tensor) -> None:
    """Require numbers as log-densities, and values that do not depend on the other points.

    Raises:
        ValueError: as `require_values` and `refuse_coupled` do.
    """
    require_values(model, x)
    refuse_coupled(model, x)


def require_values(model: Model, x: Tensor) -> None:
    """Refuse a log-density that is NaN where its score is finite: log f has one where f < 0, too.

    Raises:
        ValueError: says at how many points; and where the model itself is wrong.
    """
    value = value_at(model, x)
    if not model.is_log_density or not bool(value.isnan().any()):
        return
    bad = _where_score_is_finite(model, x, value.isnan())
    if bool(bad.any()):  # elsewhere the loss is NaN, too
        raise ValueError(
            f"the log-density must be a number where its score is one, got NaN at "
            f"{int(bad.sum())} of {len(bad)} points; look for the logarithm or root of a negative "
            "number, whose derivative is finite"
        )


def _require_support(model: Model, x: Tensor, value: Tensor) -> None:
    """Refuse points that a log-density excludes, if its score is finite there.

    Half precision overflows, where scores may be right.
    """
    if value.dtype not in verification.TOLERANCES or not bool(value.isneginf().any()):
        return
    bad = _where_score_is_finite(model, x, value.isneginf())
    if bool(bad.any()):
        raise ValueError(
            f"the log-density must be finite at the points, got minus infinity at {int(bad.sum())} "
            f"of {len(bad)}, with finite scores, so that their losses would mean nothing; drop "
            "points outside the support of the model, or give it a support that contains them "
            "(for a density on a domain pass domain= to the objective, without an indicator)"
        )


def _where_score_is_finite(model: Model, x: Tensor, bad: Tensor) -> Tensor:
    """The points with a bad value, ``(N, *F)``, and a finite score: ``(N,)``."""
    return bad.reshape(len(x), -1).any(1) & (
        score_of(model)(x).reshape(len(x), -1).isfinite().all(1)
    )


def refuse_nan(
    model: Model, x: Tensor, findings: Findings, wait: bool, supported: bool = True
) -> None:
    """Refuse points where a log-density of the last evaluation is NaN or minus infinity.

    Args:
        model: the model.
        x: the points of that evaluation.
        findings: about the model.
        wait: whether to wait for a GPU.
        supported: whether to refuse minus infinity; without, the value is kept for another call.
    """
    value = findings.value
    if supported:
        findings.value = None
    if value is None or not model.check_smoothness or (value.is_cuda and not wait):
        return
    if not can_read_values(x):  # the value is left from a check
        return
    if math.isfinite(value.sum().item()):  # quicker than a test of each
        return
    if bool(value.isnan().any()):
        require_values(model, x)
    if supported:
        _require_support(model, x, value)


def require_finite(model: Model, score: Tensor, x: Tensor) -> None:
    """Refuse a score that is not finite where the model itself is."""
    if bool(score.isfinite().all()):
        return
    value = value_at(model, x)
    finite = [t.reshape(len(x), -1).isfinite().all(1) for t in (score, value)]
    bad = ~finite[0] & finite[1]
    if bool(bad.any()):
        raise WrongDerivativeError(
            f"the score of this {model.kind} must be finite where the model is, got NaN or "
            f"infinity at {int(bad.sum())} of {len(bad)} points; look for a root of zero or a "
            "division by zero in a branch that torch.where does not take, or a softmax of entries "
            "that are all minus infinity"
        )


def few_points(model: Model, x: Tensor, findings: Findings) -> Tensor:
    """A few points, or all where the model takes only batches of their number.

    A single point says nothing about batches, so that question is left to later ones.
    """
    few = _few(x.detach())
    if findings.any_batch is None and len(few) < len(x):
        findings.any_batch = _takes(model, x.detach(), few)
    elif findings.any_batch:  # by now a closure may hold a context of N rows, or a layer couple
        late = findings.uses.total() > 2
        findings.any_batch = _takes(model, x.detach(), few) if late else _runs(model, few)
    return few if findings.any_batch and len(few) == verification.NUM_POINTS else x.detach()


def _runs(model: Model, few: Tensor) -> bool:
    """Whether a model takes a few points without an error."""
    try:
        value_at(model, few)
    except Exception:  # of any kind: whether the model is at fault shows with all points
        return False
    return True


def refuse_coupled(model: Model, x: Tensor) -> None:
    """Refuse a model whose values at some points change with the other points of the batch.

    One whose values change from call to call is left to questions that need them to repeat.

    Raises:
        ValueError: says what may be the cause.
    """
    x, few = x.detach(), _few(x.detach())
    if len(few) < len(x):
        _takes(model, x, few, may_change=True)


def _few(x: Tensor) -> Tensor:
    """The first points, at most half of them."""
    return x[: max(1, min(verification.NUM_POINTS, len(x) // 2))]


@torch.no_grad()
def _takes(model: Model, x: Tensor, few: Tensor, may_change: bool = False) -> bool:
    """Whether a model takes a smaller batch.

    Raises:
        ValueError: if its values there are others, because it couples the points of a batch or
            changes from call to call; with ``may_change`` only because it couples them.
    """

    def values(points: Tensor) -> Tensor | None:
        try:
            with verification.undone(model.call, points):
                return model.evaluate_to_compare(points)
        except Exception:  # a context of N rows in a closure, or a random model
            return None

    versions = _versions(model)
    whole, part = values(x), values(few)
    if whole is None:
        return False
    points, before = (x, whole) if part is None or len(few) == 1 else (few, part)
    after = values(other_first(points))
    moved = None if after is None else after[1:]
    for found, expected, share in ((part, whole[: len(few)], 1.0), (moved, before[1:], ALIKE)):
        if found is None or not verification.differ(found, expected, share=share):
            continue
        if versions != _versions(model):
            raise own_weights()
        again = values(x)
        changes = again is None or verification.differ(again, whole)
        noisy = again is None or verification.differ(again, whole, share=share)
        if (changes and not may_change) or not noisy:
            raise other_values(changes)
    return part is not None


def _versions(model: Model) -> list[int]:
    """What changes where weights are written into."""
    weights = verification.parameters_of(model.call)
    return [p._version for p in weights if not p.is_inference()]

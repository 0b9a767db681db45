"""Held-out losses: exact score matching, and divergences from a known score.

==============================  ==========================================  ==================
mean of                         at one point                                needs
==============================  ==========================================  ==================
`score_matching_loss`           ``tr grad s + 0.5 |s|^2``                   data
`fisher_divergence`             ``0.5 |s - s_d|^2``                         data, its score s_d
`sliced_fisher_divergence`      ``mean_j 0.5 (v_j.(s - s_d))^2``            data, its score s_d
==============================  ==========================================  ==================

In expectation over the data the first is the second minus the constant ``0.5 E|s_d|^2``, and the
third equals the second. In all of them ``model`` is a log-density ``(N, *event) -> (N,)`` or a
`Field`, with score s, and ``x`` are points ``(N, *event)``. ``batch_size``, the most points
evaluated at a time, and ``max_memory``, the bytes that they may take beside model, data and result,
which is measured, do not change the result.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_points, check_shape, check_type
from scorematching._memory import in_chunks
from scorematching._shapes import event_axes, flatten_event, project
from scorematching.derivatives.repeats import check_repeats, needs_all_rows
from scorematching.evaluation.estimate import Estimate
from scorematching.fields import Field, as_field
from scorematching.objectives import ScoreMatching
from scorematching.projections import Projection, Rademacher
from scorematching.types import Vector

_BATCH_SIZE = 1024
_SCORE = "pass a function of points (N, *event) to scores of that shape"


def score_matching_losses(
    model: Any, x: Tensor, batch_size: int = _BATCH_SIZE, max_memory: int | None = None
) -> Tensor:
    """Exact score-matching losses, ``tr grad s + 0.5 |s|^2`` at every point.

    One number per point, ``(N,)``. Cost: D second-order passes. The parameters receive no gradient.

    Example:
        The standard normal has score ``-x`` and divergence ``-D``.

        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> score_matching_losses(normal, torch.tensor([[0.0, 0.0], [3.0, 1.0]])).tolist()
        [-2.0, 3.0]
    """
    if max_memory is not None:
        check_count(max_memory, "max_memory", "it is a number of bytes, such as 2**30")
    objective = ScoreMatching(None if max_memory is None else max(1, max_memory // 2))
    return _in_batches(lambda field, x: objective(field, x), model, (batch_size, max_memory), x)


def score_matching_loss(
    model: Any, x: Tensor, batch_size: int = _BATCH_SIZE, max_memory: int | None = None
) -> Estimate:
    """Exact score-matching loss on held-out points: the mean of `score_matching_losses`.

    Smaller is better. Compare losses of two models at the same points (see `compare`), to which
    neither was fitted: the least possible value ``-0.5 E|s_d|^2`` is unknown, so that one loss
    alone says little.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> print(score_matching_loss(normal, torch.tensor([[0.0, 0.0], [3.0, 1.0]])))
        0.5 +- 2.5 (n=2)
    """
    return Estimate.of(score_matching_losses(model, x, batch_size, max_memory))


def fisher_divergence(
    model: Any,
    score: Vector,
    x: Tensor,
    batch_size: int = _BATCH_SIZE,
    max_memory: int | None = None,
) -> Estimate:
    """Fisher divergence from data whose score is known, ``L = E 0.5 |s - s_d|^2``.

    The score s_d of the data is a function ``(N, *event) -> (N, *event)``.

    Raises:
        ValueError: score returns another shape than that of its points.

    Reference: Song et al. (2019), Eq. (1).

    Example:
        >>> narrow = lambda x: -x.square().sum(-1)
        >>> fisher_divergence(narrow, lambda x: -x, torch.ones(3, 4)).mean  # 0.5 |2 x - x|^2
        2.0
    """
    check_type(score, Callable, "score must be callable", _SCORE)

    def half_square(field: Field, x: Tensor) -> Tensor:
        return 0.5 * _score_error(field, score, x).square().sum(-1)

    return Estimate.of(_in_batches(half_square, model, (batch_size, max_memory), x))


def sliced_fisher_divergence(
    model: Any,
    score: Vector,
    x: Tensor,
    projection: Projection | None = None,
    num_projections: int = 1,
    generator: torch.Generator | None = None,
    batch_size: int = _BATCH_SIZE,
    max_memory: int | None = None,
) -> Estimate:
    """Sliced Fisher divergence, ``E 0.5 (v.(s - s_d))^2``, averaged over M directions per point.

    Args:
        model: as for `fisher_divergence`, like score and x.
        score: the score s_d of the data, ``(N, *event) -> (N, *event)``.
        x: points ``(N, *event)`` from the data.
        projection: distribution of the directions; None is Rademacher, independent between points.
            With balanced directions the standard error, which assumes independence, is approximate.
        num_projections: M, directions per point.
        generator: source of randomness; None is torch's default generator.
        batch_size: most points evaluated at a time.
        max_memory: bytes that they may take.

    Raises:
        ValueError: score returns another shape than that of its points.

    Reference: Song et al. (2019), Eq. (3).

    Example:
        In one dimension the sign of v has no effect.

        >>> narrow = lambda x: -x.square().sum(-1)
        >>> sliced_fisher_divergence(narrow, lambda x: -x, torch.ones(3, 1)).mean
        0.5
    """
    check_type(score, Callable, "score must be callable", _SCORE)
    directions = Rademacher(balanced=False) if projection is None else projection
    v = directions.sample(x, num_projections, generator).transpose(0, 1)

    def half_square(field: Field, x: Tensor, v: Tensor) -> Tensor:
        error = _score_error(field, score, x)
        return 0.5 * project(error, v.transpose(0, 1).flatten(2)).square().mean(-1)

    return Estimate.of(_in_batches(half_square, model, (batch_size, max_memory), x, v))


def _in_batches(
    per_point: Callable[..., Tensor], model: Any, limits: tuple[int, int | None], *rows: Tensor
) -> Tensor:
    """Values at every point, ``(N,)``, without gradients, within limits of points and bytes."""
    field = as_field(model)
    check_points(rows[0])
    check_count(limits[0], "batch_size", "it limits memory; 1024 suits most models")
    check_repeats(field.model.evaluate, rows[0], limited=limits[1] is not None)
    with torch.no_grad():
        size = batch_for(field, rows[0], limits[0])
        return in_chunks(lambda *batch: per_point(field, *batch), rows, size, limits[1])


def batch_for(field: Field, x: Tensor, most: int) -> int:
    """The number of points to evaluate at a time: all for a closure with covariates of each."""
    if len(x) > most and needs_all_rows(field.model.evaluate, x):
        return len(x)
    return most


def _score_error(field: Field, score: Vector, x: Tensor) -> Tensor:
    """``s - s_d`` at every point, ``(N, D)``."""
    s_d, s = score(x.clone()), field.score(x)  # a score may change its points in place
    wanted = "score must return one vector per point, shape {} like x"
    check_shape(s_d, s.shape, wanted, "it is grad log p of the data, not log p")
    return flatten_event(s - s_d, event_axes(x))

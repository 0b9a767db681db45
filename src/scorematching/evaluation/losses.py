"""Held-out losses: exact score matching, and divergences from a score that is known.

==============================  ==========================================  ==================
number                          one point's share                           needs
==============================  ==========================================  ==================
`score_matching_loss`           ``tr grad s + 0.5 |s|^2``                   data
`fisher_divergence`             ``0.5 |s - s_d|^2``                         data, its score s_d
`sliced_fisher_divergence`      ``mean_j 0.5 (v_j.(s - s_d))^2``            data, its score s_d
==============================  ==========================================  ==================

In expectation over the data the first is the second less the constant ``0.5 E|s_d|^2``, and the
third equals the second. Points are taken ``batch_size`` at a time, which changes memory only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_generator, check_points
from scorematching._shapes import event_axes, flatten_event
from scorematching.fields import Field, as_field, project
from scorematching.objectives import ScoreMatching
from scorematching.projections import Projection, Rademacher
from scorematching.types import Vector

_BATCH_SIZE = 1024


@dataclass(frozen=True)
class Estimate:
    """A mean over independent points, with its standard error.

    Attributes:
        mean: the average.
        standard_error: the standard deviation of one point over sqrt(N); NaN for one point.
        count: N, the number of points.

    Example:
        >>> print(Estimate(mean=-3.2142, standard_error=0.0419, count=159))
        -3.21 +- 0.04 (n=159)
        >>> Estimate.of(torch.tensor([1.0, 3.0]))
        Estimate(mean=2.0, standard_error=1.0, count=2)
    """

    mean: float
    standard_error: float
    count: int

    @classmethod
    def of(cls, values: Tensor) -> Estimate:
        """The mean of independent values ``(N,)``.

        Raises:
            TypeError: values is not a tensor.
            ValueError: values has another shape, or is empty.
        """
        _check_values(values, "values")
        # In double precision whatever arrives: N float32 losses lose digits when they are summed.
        values = values.detach().double()
        deviation = values.std().item() if len(values) > 1 else math.nan
        return cls(values.mean().item(), deviation / len(values) ** 0.5, len(values))

    def __str__(self) -> str:
        """Mean and standard error, to the digits that the standard error supports."""
        places = _decimals(self.standard_error)
        return f"{self.mean:.{places}f} +- {self.standard_error:.{places}f} (n={self.count})"


def score_matching_losses(model: Any, x: Tensor, batch_size: int = _BATCH_SIZE) -> Tensor:
    """Exact score-matching losses, ``tr grad s + 0.5 |s|^2`` at every point.

    Cost: D second-order passes. The parameters receive no gradient.

    Args:
        model: a log-density ``(N, *event) -> (N,)`` or a `Field`.
        x: points ``(N, *event)``.
        batch_size: points taken at a time.

    Returns:
        Losses ``(N,)``.

    Example:
        The standard normal has score ``-x`` and divergence ``-D``.

        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> score_matching_losses(normal, torch.tensor([[0.0, 0.0], [3.0, 1.0]])).tolist()
        [-2.0, 3.0]
    """
    objective = ScoreMatching()
    return _in_batches(lambda field, x: objective(field, x), model, batch_size, x)


def score_matching_loss(model: Any, x: Tensor, batch_size: int = _BATCH_SIZE) -> Estimate:
    """Exact score-matching loss on held-out points: the mean of `score_matching_losses`.

    Smaller is better. Losses of two models can be compared, at the same points (see `compare`);
    one loss by itself says little, since its least possible value ``-0.5 E|s_d|^2`` is unknown.

    Args:
        model: a log-density ``(N, *event) -> (N,)`` or a `Field`.
        x: points ``(N, *event)`` that the model was not fitted to.
        batch_size: points taken at a time.

    Returns:
        Mean and standard error over the points.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> print(score_matching_loss(normal, torch.tensor([[0.0, 0.0], [3.0, 1.0]])))
        0.5 +- 2.5 (n=2)
    """
    return Estimate.of(score_matching_losses(model, x, batch_size))


def fisher_divergence(
    model: Any, score: Vector, x: Tensor, batch_size: int = _BATCH_SIZE
) -> Estimate:
    """Fisher divergence from data whose score is known, ``L = E 0.5 |s - s_d|^2``.

    Args:
        model: a log-density ``(N, *event) -> (N,)`` or a `Field`, with score s.
        score: the score s_d of the data, ``(N, *event) -> (N, *event)``.
        x: points ``(N, *event)`` from the data.
        batch_size: points taken at a time.

    Returns:
        Mean and standard error over the points.

    Raises:
        ValueError: score returns another shape than that of its points.

    Reference: Song et al. (2019), Eq. (1).

    Example:
        >>> narrow = lambda x: -x.square().sum(-1)
        >>> fisher_divergence(narrow, lambda x: -x, torch.ones(3, 4)).mean  # 0.5 |2 x - x|^2
        2.0
    """

    def half_square(field: Field, x: Tensor) -> Tensor:
        return 0.5 * _score_error(field, score, x).square().sum(-1)

    return Estimate.of(_in_batches(half_square, model, batch_size, x))


def sliced_fisher_divergence(
    model: Any,
    score: Vector,
    x: Tensor,
    projection: Projection | None = None,
    num_projections: int = 1,
    generator: torch.Generator | None = None,
    batch_size: int = _BATCH_SIZE,
) -> Estimate:
    """Sliced Fisher divergence, ``E 0.5 (v.(s - s_d))^2``, averaged over M directions per point.

    Args:
        model: a log-density ``(N, *event) -> (N,)`` or a `Field`, with score s.
        score: the score s_d of the data, ``(N, *event) -> (N, *event)``.
        x: points ``(N, *event)`` from the data.
        projection: law of the directions; None is Rademacher, independent from point to point.
            With a balanced law the mean is as exact, but the standard error, which takes points
            to be independent, is only approximate.
        num_projections: M, directions per point.
        generator: source of randomness; None is torch's default generator.
        batch_size: points taken at a time.

    Returns:
        Mean and standard error over points and directions together.

    Raises:
        ValueError: score returns another shape than that of its points.

    Reference: Song et al. (2019), Eq. (3).

    Example:
        In one dimension a sign has nothing to choose.

        >>> narrow = lambda x: -x.square().sum(-1)
        >>> sliced_fisher_divergence(narrow, lambda x: -x, torch.ones(3, 1)).mean
        0.5
    """
    check_points(x)
    check_generator(generator, x)
    law = Rademacher(balanced=False) if projection is None else projection
    v = law.sample(x, num_projections, generator).transpose(0, 1)

    def half_square(field: Field, x: Tensor, v: Tensor) -> Tensor:
        error = _score_error(field, score, x)
        return 0.5 * project(error, v.transpose(0, 1).flatten(2)).square().mean(-1)

    return Estimate.of(_in_batches(half_square, model, batch_size, x, v))


def compare(a_losses: Tensor, b_losses: Tensor) -> Estimate:
    """Mean of ``a - b`` over the same points: negative where model a is better.

    Pairing takes out what the points have in common, so this standard error is usually far
    smaller than those of the two means.

    Args:
        a_losses: losses of model a, ``(N,)``.
        b_losses: losses of model b at the same points, ``(N,)``.

    Returns:
        Mean and standard error of the difference.

    Raises:
        ValueError: the two have different lengths.

    Example:
        >>> print(compare(torch.tensor([1.0, 5.0, 9.0]), torch.tensor([2.0, 7.0, 12.0])))
        -2.0 +- 0.6 (n=3)
    """
    _check_values(a_losses, "a_losses")
    _check_values(b_losses, "b_losses")
    if len(a_losses) != len(b_losses):
        raise ValueError(
            f"b_losses must belong to the same points as a_losses ({len(a_losses)} of them), got "
            f"{len(b_losses)}; evaluate both models on the same held-out points"
        )
    return Estimate.of(a_losses.detach().double() - b_losses.detach().double())


def _in_batches(
    per_point: Callable[..., Tensor], model: Any, batch_size: int, *rows: Tensor
) -> Tensor:
    """Values at every point, ``(N,)``, ``batch_size`` rows at a time and without gradients."""
    field = as_field(model)
    check_points(rows[0])
    check_count(batch_size, "batch_size", "it limits memory; 1024 points suit most models")
    batches = zip(*(row.split(batch_size) for row in rows), strict=True)
    with torch.no_grad():
        return torch.cat([per_point(field, *batch) for batch in batches])


def _score_error(field: Field, score: Vector, x: Tensor) -> Tensor:
    """``s - s_d`` at every point, ``(N, D)``."""
    wanted, got = score(x), field.score(x)
    if not isinstance(wanted, Tensor) or wanted.shape != got.shape:
        shape = tuple(wanted.shape) if isinstance(wanted, Tensor) else type(wanted).__name__
        raise ValueError(
            f"score must return one vector per point, shape {tuple(got.shape)} like x, "
            f"got {shape}; it is grad log p of the data, not log p"
        )
    return flatten_event(got - wanted, event_axes(x))


def _decimals(standard_error: float) -> int:
    """Decimals of a number with this error: one digit of the error, two where it begins with 1-3.

    One digit of 0.012 would round it by a sixth; two of 0.087 would promise too much.
    """
    if not (math.isfinite(standard_error) and standard_error > 0):
        return 4
    exponent = math.floor(math.log10(standard_error))
    return max(0, -exponent + (standard_error / 10**exponent < 3.5))


def _check_values(values: Any, name: str) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor of shape (N,), got {type(values).__name__}; "
            "convert it with torch.as_tensor"
        )
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(
            f"{name} must have shape (N,) with N >= 1, got {tuple(values.shape)}; "
            "pass one number per point"
        )

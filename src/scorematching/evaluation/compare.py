"""Which of two models is closer to the data, by paired differences of their losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_generator, check_share, check_type
from scorematching._clusters import groups_of, require_same_rows
from scorematching._memory import in_chunks
from scorematching.derivatives.repeats import check_repeats
from scorematching.evaluation.estimate import Estimate
from scorematching.evaluation.losses import batch_for, score_matching_losses
from scorematching.evaluation.scores import field_at
from scorematching.objectives import Objective

_BATCH_SIZE = 1024

ROUNDING = 256
"""Units of rounding of the largest loss up to which differences are none."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of `compare`.

    Attributes:
        difference: mean of ``loss_a - loss_b`` over the points; negative if a is better.
        a: mean loss of the first model.
        b: mean loss of the second.
        level: of the test of equal losses.

    Example:
        >>> same, better = Estimate(-1.0, 0.1, 50), Estimate(-1.5, 0.1, 50)
        >>> print(Comparison(Estimate(0.5, 0.1, 50), a=same, b=better))
        b is better: loss a - b = 0.50 +- 0.10 (n=50), p = 5.7e-07
    """

    difference: Estimate
    a: Estimate
    b: Estimate
    level: float = 0.05

    @property
    def p_value(self) -> float:
        """Two-sided, of the hypothesis that both have the same expected loss (normal limit)."""
        mean, error = abs(self.difference.mean), self.difference.standard_error
        if error == 0:
            return float(mean == 0)
        return math.erfc(mean / error / math.sqrt(2))

    @property
    def better(self) -> str | None:
        """``"a"`` or ``"b"``; None if the data do not decide."""
        if not self.p_value <= self.level:
            return None
        return "a" if self.difference.mean < 0 else "b"

    def __str__(self) -> str:
        """The verdict, the difference with its standard error, and the p-value."""
        verdict = "undecided" if self.better is None else f"{self.better} is better"
        return f"{verdict}: loss a - b = {self.difference}, p = {self.p_value:.2g}"


def compare(
    a: Any,
    b: Any,
    X: Any,
    objective: Objective | None = None,
    level: float = 0.05,
    generator: torch.Generator | None = None,
    max_memory: int | None = None,
    cluster: Any = None,
) -> Comparison:
    """Compare two models on held-out points by their score-matching losses.

    The mean difference estimates the difference of the two Fisher divergences from the data, in
    which everything unknown cancels. Both models are evaluated at the same points, so its standard
    error is usually far smaller than those of the two losses.

    Args:
        a: the first model: a `Field`, a fitted estimator or result of a fit of this library, or a
            function of tensors that returns log-densities ``(N,)`` or scores of the shape of x.
        b: the second model; the two may be of different kinds.
        X: points ``(N, *event)`` that neither was fitted to: a tensor, an array or a data
            frame, whose columns results of `fit` match by name.
        objective: loss to compare; None is exact score matching. Random directions are drawn from
            the same seed for both, and should be independent between points (``balanced=False``).
        level: of the test behind the verdict.
        generator: source of randomness, for objectives that need it.
        max_memory: bytes that may be taken beside models, points and losses, which is measured.
            Directions then depend on it.
        cluster: labels of the points, ``(N,)``: points of one cluster may depend on each other.

    Returns:
        Difference, losses, p-value and verdict.

    Raises:
        TypeError: a model has no score that can be differentiated.
        ValueError: there are fewer than two points, or a loss is not finite.

    Example:
        >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> narrow = lambda x: -x.square().sum(-1)  # a log-density
        >>> compare(lambda x: -x, narrow, x).better  # the first is a score, and the true one
        'a'
    """
    check_share(level, "level", "0.05 is usual")
    if objective is not None:
        advice = "pass one such as SlicedScoreMatchingVR()"
        check_type(objective, Callable, "objective must be an objective or None", advice)
    if len(X) < 2:
        raise ValueError(f"X must hold two points or more, got {len(X)}; hold out dozens")
    require_same_rows(X, cluster, "cluster")
    groups = groups_of(cluster, torch.ones(len(X), dtype=torch.bool))
    check_generator(generator, torch.empty(0))
    seed = int(torch.randint(2**31 - 1, (), generator=generator)) if generator else 0
    losses = [_losses(model, X, objective, seed, max_memory) for model in (a, b)]
    for name, values in zip("ab", losses):
        _check_losses(values, name)
    one, other = losses
    difference = Estimate.of(_differences(one, other), groups)
    return Comparison(difference, Estimate.of(one, groups), Estimate.of(other, groups), level)


def _losses(
    model: Any, X: Any, objective: Objective | None, seed: int, max_memory: int | None
) -> Tensor:
    """Losses of a model at all points, ``(N,)``."""
    field, x = field_at(model, X, whole_space=objective is None)
    if objective is None:
        return score_matching_losses(field, x, _BATCH_SIZE, max_memory).cpu()
    check_repeats(field.model.evaluate, x, limited=max_memory is not None)
    generator = torch.Generator(x.device).manual_seed(seed)
    loss = partial(objective, field, generator=generator)
    with torch.no_grad():
        return in_chunks(loss, [x], batch_for(field, x, _BATCH_SIZE), max_memory).cpu()


def _differences(one: Tensor, other: Tensor) -> Tensor:
    """Differences of losses ``(N,)`` in double precision, zeros where all of them are rounding.

    Rounding errors of one model that is computed in two ways need not have mean zero.
    """
    difference = one.double() - other.double()
    rounding = max(torch.finfo(part.dtype).eps * float(part.abs().max()) for part in (one, other))
    is_rounding = float(difference.abs().max()) <= ROUNDING * rounding
    return torch.zeros_like(difference) if is_rounding else difference


def _check_losses(losses: Tensor, name: str) -> None:
    bad = int((~losses.isfinite()).sum())
    if bad:
        raise ValueError(
            f"{name} must have a finite loss at every point, got NaN or infinity at {bad} of "
            f"{len(losses)}; leave out points where a model has no density, for both models"
        )

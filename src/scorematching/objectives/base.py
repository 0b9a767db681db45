"""The law that every objective shares, ``loss = 0.5 |first|^2 + second``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_batch, check_generator, check_log_density
from scorematching.fields import Field, LogDensityField, as_field
from scorematching.types import Terms


class Objective:
    """A loss per point, ``objective(model, x, generator=None) -> (N,)``, never reduced.

    An objective draws its noise, asks the field one question and combines the answers by `law`.
    A subclass writes `terms` (and `draw`, where it needs noise); one that is not of this form
    writes `loss` instead.

    Example:
        An objective of your own is one method.

        >>> class HalfSquaredScore(Objective):
        ...     def terms(self, field, x, noise=None):
        ...         score = field.score(x)
        ...         return Terms(score, torch.zeros(len(x)))
        >>> HalfSquaredScore()(lambda x: -0.5 * x.square().sum(-1), torch.ones(1, 2)).item()
        1.0
    """

    def __call__(self, model: Any, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The loss of every point.

        Args:
            model: a log-density ``(N, *event) -> (N,)`` (an `nn.Module`, or any callable), or a
                `Field`; a score network comes wrapped in `VectorField`.
            x: points ``(N, *event)``, floating point and finite.
            generator: source of randomness; None is torch's default generator.

        Returns:
            Losses ``(N,)``; take their mean to train, their mean and standard error to report.

        Raises:
            TypeError: if x is not a floating-point tensor or the model is not callable.
            ValueError: if x is empty, not finite or lacks a batch axis, or if the model returns
                the wrong shape or ignores x.
        """
        field = as_field(model)
        check_batch(x)  # the field checks that x is finite
        check_generator(generator, x)
        loss = self.loss(field, x, self.draw(x, generator))
        check_log_density(loss, x, feature_axes=0)
        return loss

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> Any:
        """The noise of one evaluation, the only random part; None if there is none."""
        return None

    def share(self, noise: Any, x: Tensor, rows: slice) -> Any:
        """The noise of some points of a batch: rows of the noise that was drawn for all of them.

        Processes that train together draw noise for the whole batch and take that of their own
        points, so that it does not depend on their number.

        Args:
            noise: from ``draw(x)``; tensors of it have the points along their first axis, or the
                subclass writes a method of its own.
            x: the whole batch.
            rows: which of its points.

        Returns:
            The noise of these points; None where it must be drawn for them anew.

        Raises:
            ValueError: if a tensor has another length than the batch.
        """
        return share_rows(noise, len(x), rows, self)

    def terms(self, field: Field, x: Tensor, noise: Any) -> Terms:
        """The two terms of the law, both linear in the field.

        Raises:
            TypeError: if the objective is not of this form.
        """
        raise TypeError(
            f"{type(self).__name__} has no terms: it is not of the form 0.5 |first|^2 + second; "
            "use ScoreMatching, SlicedScoreMatching, SlicedScoreMatchingVR or "
            "DenoisingScoreMatching"
        )

    def loss(self, field: Field, x: Tensor, noise: Any) -> Tensor:
        """The loss of every point, ``(N,)``, for noise that has been drawn: deterministic."""
        return law(self.terms(field, x, noise))


def share_rows(noise: Any, count: int, rows: slice, owner: Any) -> Any:
    """Rows of noise that was drawn for ``count`` points, a tensor or tuples of them; None of none.

    Raises:
        ValueError: if a tensor has another length; the message names the owner's class.
    """
    if isinstance(noise, tuple):
        parts = [share_rows(part, count, rows, owner) for part in noise]
        return type(noise)(*parts) if hasattr(noise, "_fields") else tuple(parts)
    if not isinstance(noise, Tensor):
        return None
    if noise.ndim == 0 or len(noise) != count:
        raise ValueError(
            f"the noise of {type(owner).__name__} must have the {count} points along its first "
            f"axis to be shared, got shape {tuple(noise.shape)}; override share(noise, x, rows)"
        )
    return noise[rows]


def law(terms: Terms) -> Tensor:
    """The loss of every point, ``0.5 |first|^2 + second``, ``(N,)``."""
    # In the wider precision: the squares of a score network overflow in float16 under autocast.
    first = terms.first.to(torch.promote_types(terms.first.dtype, terms.second.dtype))
    return 0.5 * first.square().sum(-1) + terms.second


def require_log_density(field: Field, objective: Objective) -> LogDensityField:
    """The field as a log-density, for objectives that need one."""
    if not isinstance(field, LogDensityField):
        raise TypeError(
            f"{type(objective).__name__} needs a log-density, got {field}; a score network has "
            "no density to compare: train it with SlicedScoreMatchingVR"
        )
    return field

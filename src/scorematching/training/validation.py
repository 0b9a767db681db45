"""The losses of held-out points."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points, check_type
from scorematching.fields import as_field
from scorematching.objectives import Objective
from scorematching.training.alternating import Loss
from scorematching.training.data import Batches, count_points
from scorematching.training.losses import require_losses
from scorematching.training.memory import Parts

Validation = Tensor | Callable[[Any], float | Tensor]
"""Held-out points ``(N, *event)``, or a function from the model to a loss or to losses ``(N,)``."""

_CHUNK = 1024


def make_validation(
    model: Any, validation: Validation | None, objective: Loss, like: Batches
) -> Callable[[], Tensor] | None:
    """The validation as a function that returns losses, ``(N,)`` or ``()``; None without.

    Held-out points are treated like the batches of training: their device, transform and generator.
    Processes that train together share them.
    """
    if validation is None:
        return None
    if not isinstance(validation, Tensor):
        wanted = "validation must be held-out points or a function of the model"
        check_type(validation, Callable, wanted, "pass a tensor")
        return lambda: torch.as_tensor(validation(model), dtype=torch.float64).detach()
    if like.transform is None:
        check_points(validation, "validation")
    x = validation.to(like.ranks.device)

    def losses(part: Tensor) -> Tensor:
        batch = like.prepare(part)
        found = _losses(model, objective, batch, like)
        require_losses(found, len(found) if found.ndim else count_points(batch))
        return found.flatten()

    if like.ranks.count > 1:  # all processes must have the same parts
        return lambda: torch.cat([losses(part) for part in x.split(_CHUNK)]).double()
    parts = Parts(losses, like.generator, _CHUNK)
    return lambda: parts(x).double()


def _losses(model: Any, objective: Loss, x: Any, like: Batches) -> Tensor:
    """The losses of a batch, of which each process evaluates its own points if it can."""
    ranks = like.ranks
    if ranks.count == 1 or not isinstance(objective, Objective) or len(x) < ranks.count:
        return objective(model, x, generator=like.generator)
    noise, rows = objective.draw(x, like.generator), slice(ranks.rank, None, ranks.count)
    mine = objective.share(noise, x, rows)
    if mine is None and noise is not None:  # drawn while the loss is evaluated
        return objective.loss(as_field(model), x, noise)
    losses = objective.loss(as_field(model), x[rows], mine)
    padded = losses.new_zeros(-(-len(x) // ranks.count))
    padded[: len(losses)] = losses
    return ranks.gather(padded).T.flatten()[: len(x)]  # in the order of the points


@contextmanager
def temporary_state(generator: torch.Generator, state: Tensor) -> Iterator[None]:
    """Another state of the generator inside the block."""
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)

"""Training steps within a budget of memory."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from scorematching._memory import Budget, Chunks

USES = 17
"""Uses of a model after which all kinds of checks of its derivatives have been made once."""

_COPIES = 8
"""Copies of the weights during training: gradients (twice, as they are clipped), the two moments of
Adam, an average, the best so far, the last finite ones, and the copy that is measured."""


def parts_of_batch(
    module: nn.Module,
    loss: Callable[[nn.Module, Tensor], Tensor],
    x: Tensor,
    batch_size: int,
    budget: Budget,
) -> int:
    """In how many parts a batch is evaluated, so that a training step fits into a budget.

    Steps of 1, 2, 4 ... points are measured until the next would not fit, each on a new copy of the
    model, whose derivatives are then checked as those of a new model are.

    Args:
        module: whose parameters are trained.
        loss: of a module at points, ``(N, D) -> (N,)``.
        x: points ``(N, D)``.
        batch_size: of the steps.
        budget: of the computation.

    Raises:
        ValueError: if the step of one point does not fit.
    """
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    budget.require(_COPIES * weights, "copies of the weights take during training")
    chunks = Chunks(batch_size, budget, reserve=_COPIES * weights)

    def step(part: Tensor) -> None:
        own = copy.deepcopy(module)
        for _ in range(USES):
            value = loss(own, part).mean()
            torch.autograd.grad(value, list(own.parameters()), allow_unused=True)

    for _ in chunks(step, x[: 2 * batch_size]):
        if not chunks.growing:
            break
    return -(-batch_size // chunks.size)

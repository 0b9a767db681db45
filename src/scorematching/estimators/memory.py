"""Training steps within a budget of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scorematching._memory import Budget, Chunks

_COPIES = 7
"""Copies of the weights during training: gradients (twice, as they are clipped), the two moments of
Adam, an average, the best so far and the last finite ones."""


def parts_of_batch(
    module: nn.Module, loss: Any, x: Tensor, batch_size: int, budget: Budget | None
) -> int:
    """In how many parts a batch is evaluated, so that a training step fits into a budget.

    Steps of 1, 2, 4 ... points are measured until the next would not fit.

    Args:
        module: whose parameters are trained.
        loss: ``(N, D) -> (N,)``, with a generator of its own.
        x: points ``(N, D)``.
        batch_size: of the steps.
        budget: of the computation; None is one part.

    Raises:
        ValueError: if the step of one point does not fit.
    """
    if budget is None:
        return 1
    parameters = [p for p in module.parameters() if p.requires_grad]
    weights = sum(p.numel() * p.element_size() for p in parameters)
    budget.require(_COPIES * weights, "copies of the weights take during training")
    chunks = Chunks(batch_size, max(1, budget.left - _COPIES * weights))

    def step(part: Tensor) -> Tensor:
        torch.autograd.grad(loss(part).mean(), parameters, allow_unused=True)
        return part[:0]

    for _ in chunks(step, x[: 2 * batch_size]):
        if not chunks.growing:
            break
    return -(-batch_size // chunks.size)

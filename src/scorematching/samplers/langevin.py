"""Langevin steps, unadjusted: a score is all they need.

A step of size h is ``x + (h^2 / 2) s(x) + h eps``, eps standard normal: h is the length of the
noise, as it is the step size of a leapfrog path. (Where a step is written
``x + a s(x) + sqrt(2 a) eps``, a is ``h^2 / 2``.) Without a test that accepts or rejects, chains
settle on a law that is only near the target: for a Gaussian of precision P its covariance is
``P^-1 (I - h^2 P / 4)^-1``. `mala` adds that test.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_batch, check_vector
from scorematching.samplers.base import check_step_size, normal_like, per_chain
from scorematching.types import Vector

__all__ = ["LangevinInfo", "draw", "move", "step"]


class LangevinInfo(NamedTuple):
    """What a step looked at.

    Attributes:
        score: at the point it left, ``(C, *event)``; where it grows, the step size is too large.

    Example:
        >>> _, info = step(torch.ones(1, 2), torch.neg, step_size=0.1)
        >>> info.score.tolist()
        [[-1.0, -1.0]]
    """

    score: Tensor


def draw(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The randomness of one step of chains at ``x: (C, *event)``: standard normal, that shape.

    Args:
        x: positions ``(C, *event)``.
        generator: source of randomness; None is torch's default generator.

    Returns:
        eps, ``(C, *event)``.

    Example:
        >>> draw(torch.zeros(4, 2)).shape
        torch.Size([4, 2])
    """
    return normal_like(x, generator)


def move(
    x: Tensor, score: Vector, noise: Tensor, step_size: float | Tensor
) -> tuple[Tensor, LangevinInfo]:
    """One step with given noise, ``x + (h^2 / 2) s(x) + h eps``; no graph is kept.

    Args:
        x: where the chains are, ``(C, *event)``.
        score: s, ``(C, *event) -> (C, *event)``.
        noise: eps, from `draw`.
        step_size: h, a number or one per chain, ``(C,)``.

    Returns:
        Where they are next, and what the step looked at.

    Example:
        >>> x, _ = move(torch.tensor([[4.0]]), torch.neg, torch.tensor([[1.0]]), step_size=1.0)
        >>> x.item()  # 4 - 2 + 1
        3.0
    """
    s = score(x)
    check_vector(s, x)
    # A graph that reached back through every step would fill the memory.
    x, s = x.detach(), s.detach()
    h = per_chain(step_size, x)
    return x + 0.5 * h * h * s + h * noise, LangevinInfo(s)


def step(
    x: Tensor,
    score: Vector,
    step_size: float | Tensor,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, LangevinInfo]:
    """One unadjusted Langevin step.

    Args:
        x: where the chains are, ``(C, *event)``.
        score: s, ``(C, *event) -> (C, *event)``: a score network, `VectorField.score`...
        step_size: h, a number or one per chain, ``(C,)``.
        generator: source of randomness; None is torch's default generator.

    Returns:
        Where they are next, and what the step looked at.

    Example:
        >>> x = torch.full((1000, 1), 5.0)
        >>> for _ in range(50):
        ...     x, _ = step(x, torch.neg, step_size=0.5)
        >>> bool(x.mean().abs() < 1)
        True
    """
    check_batch(x)
    check_step_size(step_size, x)
    return move(x, score, draw(x, generator), step_size)

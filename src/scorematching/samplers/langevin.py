"""Unadjusted Langevin steps, which need only a score.

A step of size h is ``x + (h^2 / 2) s(x) + h eps`` with eps standard normal. (In the form
``x + a s(x) + sqrt(2 a) eps``, a is ``h^2 / 2``.) Without a Metropolis test, chains converge to a
distribution that is only close to the target: for a Gaussian of precision P its covariance is
``P^-1 (I - h^2 P / 4)^-1``. `mala` adds the test.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_batch, check_shape, check_type, check_vector
from scorematching._random import normal
from scorematching.derivatives.repeats import check_mode
from scorematching.samplers.base import check_step_size, step_sizes
from scorematching.types import Vector

__all__ = ["LangevinInfo", "draw", "move", "step"]


class LangevinInfo(NamedTuple):
    """Diagnostics of one step.

    Attributes:
        score: before the step, ``(C, *event)``; if it grows, the step size is too large.

    Example:
        >>> _, info = step(torch.ones(1, 2), torch.neg, step_size=0.1)
        >>> info.score.tolist()
        [[-1.0, -1.0]]
    """

    score: Tensor


def draw(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The noise of one step of chains at x: standard normal, ``(C, *event)``.

    Example:
        >>> draw(torch.zeros(4, 2)).shape
        torch.Size([4, 2])
    """
    return normal(x.shape, x, generator)


def move(
    x: Tensor, score: Vector, noise: Tensor, step_size: float | Tensor
) -> tuple[Tensor, LangevinInfo]:
    """One step with given noise, ``x + (h^2 / 2) s(x) + h eps``, detached.

    Arguments as for `step`, with noise eps from `draw`.

    Example:
        >>> x, _ = move(torch.tensor([[4.0]]), torch.neg, torch.tensor([[1.0]]), step_size=1.0)
        >>> x.item()  # 4 - 2 + 1
        3.0
    """
    check_shape(noise, x.shape, "noise must have the shape of x, {}", "take it from draw(x)")
    s = score(x.clone())  # a score may change its points in place
    check_vector(s, x)
    # Detached, because a graph through all steps would fill the memory.
    x, s = x.detach(), s.detach()
    h = step_sizes(step_size, x)
    return x + 0.5 * h * h * s + h * noise, LangevinInfo(s)


def step(
    x: Tensor, score: Vector, step_size: float | Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, LangevinInfo]:
    """One unadjusted Langevin step.

    Args:
        x: positions, ``(C, *event)``.
        score: s, ``(C, *event) -> (C, *event)``: a score network, `VectorField.score`... With
            layers such as dropout it must be in evaluation mode.
        step_size: h, a number or one per chain, ``(C,)``.
        generator: source of randomness; None is torch's default generator.

    Example:
        >>> x = torch.full((1000, 1), 5.0)
        >>> for _ in range(50):
        ...     x, _ = step(x, torch.neg, step_size=0.5)
        >>> bool(x.mean().abs() < 1)
        True
    """
    check_batch(x)
    advice = "pass a function of points, such as the method score of a field"
    check_type(score, Callable, "score must be callable", advice)
    check_step_size(step_size, x)
    check_mode(score, x)
    return move(x, score, draw(x, generator), step_size)

"""Annealed Langevin sampling through decreasing levels of noise.

At every level sigma, chains take unadjusted Langevin steps with the score of the data plus noise
of standard deviation sigma; step sizes are proportional to sigma.
"""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_batch, check_count, check_positive, check_type
from scorematching.derivatives.repeats import check_mode
from scorematching.samplers import langevin

__all__ = ["AnnealedInfo", "anneal", "noise_levels"]

NoisyScore = Callable[[Tensor, float], Tensor]
"""Score of the data with noise, ``(x: (C, *event), sigma) -> (C, *event)``."""


class AnnealedInfo(NamedTuple):
    """Diagnostics of `anneal`.

    Attributes:
        sigmas: the levels, ``(L,)``.
        step_sizes: at each level, ``(L,)``.
        score_norms: mean over the chains of ``sigma |s|`` at the last step of each level, ``(L,)``;
            if the score is right, about ``sqrt(D)`` where the noise is wider than the data, and
            less where it is narrower.

    Example:
        >>> _, info = anneal(lambda x, sigma: -x / sigma**2, torch.zeros(2, 3), [2.0, 1.0], 0.1)
        >>> info.step_sizes.tolist() == [0.2, 0.1]
        True
    """

    sigmas: Tensor
    step_sizes: Tensor
    score_norms: Tensor


def noise_levels(largest: float, smallest: float, num: int) -> list[float]:
    """Levels of noise that decrease by a constant factor.

    Args:
        largest: first level, about the diameter of the data.
        smallest: last level, for images below what is visible.
        num: L, number of levels.

    Returns:
        ``largest * (smallest / largest)^(i / (L - 1))`` for i from 0 to L - 1.

    Example:
        >>> [round(sigma, 6) for sigma in noise_levels(4.0, 1.0, 3)]
        [4.0, 2.0, 1.0]
    """
    check_positive(largest, "largest", "take about the diameter of the data")
    check_positive(smallest, "smallest", "0.01 suits images in [0, 1]")
    check_count(num, "num", "ten levels suit images")
    if smallest > largest:
        raise ValueError(
            f"largest must be at least smallest, got {largest!r} and {smallest!r}; exchange them: "
            "levels decrease"
        )
    if num == 1:
        return [float(smallest)]
    ratio = math.log(smallest / largest) / (num - 1)
    return [largest * math.exp(i * ratio) for i in range(num)]


def anneal(
    score: NoisyScore,
    x: Tensor,
    sigmas: Iterable[float],
    step_size: float,
    num_steps: int = 100,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, AnnealedInfo]:
    """Final positions and diagnostics of chains with ``num_steps`` Langevin steps at each level.

    At level i the step size is ``h sigma_i / sigma_L``, which keeps the ratio of drift and noise.
    Cost: ``L * num_steps`` scores.

    Args:
        score: ``(x, sigma) -> (C, *event)``, of the data with noise of standard deviation sigma.
        x: initial positions of the chains, ``(C, *event)``.
        sigmas: decreasing levels of noise, see `noise_levels`; any sequence of numbers.
        step_size: h, at the last level.
        num_steps: steps at every level.
        generator: source of randomness; None is torch's default generator.

    Reference: Song and Ermon (2019), Generative modeling by estimating gradients, Algorithm 1,
    where the step is ``alpha = h^2``.

    Example:
        Data at the origin only: with noise of level sigma the score is ``-x / sigma^2``.

        >>> x, _ = anneal(lambda x, sigma: -x / sigma**2, 5 * torch.randn(100, 2),
        ...               noise_levels(5.0, 0.01, 10), step_size=0.01, num_steps=20)
        >>> bool(x.abs().max() < 0.1)
        True
    """
    check_batch(x)
    check_count(num_steps, "num_steps", "a hundred steps suit images")
    check_positive(step_size, "step_size", "a fifth of the last sigma is a start")
    advice = "give levels of noise, as from noise_levels"
    check_type(sigmas, Iterable, "sigmas must be a sequence", advice)
    given: list[Any] = list(sigmas)
    sigmas = [sigma.item() if isinstance(sigma, Tensor) else sigma for sigma in given]
    for sigma in sigmas or [0.0]:
        check_positive(sigma, "sigmas", advice)
    sigmas = list(map(float, sigmas))
    if any(after > before for before, after in pairwise(sigmas)):
        raise ValueError(
            f"sigmas must decrease, got {sigmas[0]:g} to {sigmas[-1]:g} with larger levels after "
            "smaller ones; sort them, the largest first: samples have the noise of the last"
        )
    check_mode(lambda y: score(y, sigmas[0]), x)
    sizes = [step_size * sigma / sigmas[-1] for sigma in sigmas]
    norms = []
    for sigma, size in zip(sigmas, sizes):

        def at_level(y: Tensor, sigma: float = sigma) -> Tensor:
            return score(y, sigma)

        for _ in range(num_steps):
            x, info = langevin.move(x, at_level, langevin.draw(x, generator), size)
        norms.append(sigma * info.score.flatten(1).norm(dim=1).mean())
    levels, steps = (torch.tensor(values, dtype=torch.float64) for values in (sigmas, sizes))
    return x, AnnealedInfo(levels, steps, torch.stack(norms))

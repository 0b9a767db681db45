"""Metropolis-adjusted Langevin steps, which leave the target invariant.

The proposal ``y = x + (h^2 / 2) s(x) + h eps`` is accepted with probability
``min(1, p(y) q(x | y) / (p(x) q(y | x)))``, with q the density of the proposal. This equals one
leapfrog step of `hmc` with momentum eps: the position is y, and the energy error is minus the
logarithm of that ratio.
"""

import torch

from scorematching.samplers import hmc
from scorematching.samplers.base import State, Target, check_step_size, checked_state
from scorematching.samplers.hmc import HMCInfo, HMCNoise, draw

__all__ = ["draw", "move", "step"]


def move(
    state: State, target: Target, noise: HMCNoise, step_size: float | torch.Tensor
) -> tuple[State, HMCInfo]:
    """One step with given noise, deterministic.

    Arguments as for `step`, with noise from `draw`: eps and a uniform number for each chain.

    Example:
        >>> from scorematching.samplers import start, target_of
        >>> normal = target_of(lambda x: -0.5 * x.square().sum(-1))
        >>> noise = HMCNoise(torch.tensor([[1.0]]), torch.zeros(1))
        >>> move(start(normal, torch.tensor([[4.0]])), normal, noise, 1.0)[0].x.item()  # 4 - 2 + 1
        3.0
    """
    return hmc.move(state, target, noise, step_size, num_leapfrog=1)


def step(
    state: State,
    target: Target,
    step_size: float | torch.Tensor,
    generator: torch.Generator | None = None,
) -> tuple[State, HMCInfo]:
    """One Metropolis-adjusted Langevin step, which leaves the target invariant.

    Args:
        state: from `start` or an earlier step with the same target.
        target: log-density and score, see `target_of`.
        step_size: h, a number or one per chain, ``(C,)``; best with an acceptance of about 0.57.
        generator: source of randomness; None is torch's default generator.

    Reference: Roberts and Tweedie (1996), Exponential convergence of Langevin distributions.

    Example:
        >>> from scorematching.samplers import start, target_of
        >>> normal = target_of(lambda x: -0.5 * x.square().sum(-1))
        >>> state, info = step(start(normal, torch.zeros(1000, 2)), normal, step_size=0.1)
        >>> bool(info.acceptance.mean() > 0.99)
        True
    """
    state = checked_state(state)
    check_step_size(step_size, state.x)
    return move(state, target, draw(state.x, generator), step_size)

"""Hamiltonian Monte Carlo: one step of many chains, as a pure function.

A step is ``draw``, the only random part, then ``move``, which is deterministic. The step size is an
argument; `adaptation` computes a new one from the acceptance.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_count, check_shape
from scorematching._random import normal, uniform
from scorematching._shapes import event_axes, inner
from scorematching.samplers.adaptation import adapt_step_size
from scorematching.samplers.base import (
    ForcedTarget,
    State,
    Target,
    ask,
    check_step_size,
    checked_state,
    per_chain,
    start,
    step_sizes,
    target_of,
)

__all__ = [
    "ForcedTarget",
    "HMCInfo",
    "HMCNoise",
    "HMCState",
    "Target",
    "adapt_step_size",
    "draw",
    "leapfrog",
    "move",
    "start",
    "step",
    "target_of",
]

HMCState = State
"""The state of chains, that of all samplers that use the log-density."""


class HMCNoise(NamedTuple):
    """The randomness of one step.

    Attributes:
        momentum: standard normal, ``(C, *event)``.
        uniform: between 0 and 1, ``(C,)``; a proposal is accepted if it is below the acceptance.

    Example:
        >>> noise = draw(torch.zeros(4, 2))
        >>> bool((noise.uniform < 1).all())
        True
    """

    momentum: Tensor
    uniform: Tensor


class HMCInfo(NamedTuple):
    """Diagnostics of one step.

    Attributes:
        acceptance: probability with which each proposal is accepted, ``(C,)``.
        accepted: whether it was, ``(C,)``.
        energy_error: change of energy along the path, ``(C,)``; zero for exact dynamics.

    Example:
        >>> flat = target_of(lambda x: 0.0 * x.sum(-1))
        >>> _, info = step(start(flat, torch.zeros(2, 1)), flat, step_size=1.0)
        >>> info.energy_error.tolist(), info.accepted.tolist()
        ([0.0, 0.0], [True, True])
    """

    acceptance: Tensor
    accepted: Tensor
    energy_error: Tensor


def draw(x: Tensor, generator: torch.Generator | None = None) -> HMCNoise:
    """Momenta ``(C, *event)`` and uniform numbers ``(C,)`` for one step of chains at x.

    Example:
        >>> momentum, uniform = draw(torch.zeros(4, 2))
        >>> momentum.shape, uniform.shape
        (torch.Size([4, 2]), torch.Size([4]))
    """
    return HMCNoise(normal(x.shape, x, generator), uniform(x.shape[:1], x, generator))


def leapfrog(
    target: Target, state: HMCState, momentum: Tensor, step_size: float | Tensor, num_leapfrog: int
) -> tuple[HMCState, Tensor]:
    """State and momentum after a path of Hamiltonian dynamics, by the leapfrog rule.

    L times ``p <- p + (h/2) s(x)``, ``x <- x + h p``, ``p <- p + (h/2) s(x)``. The map preserves
    volume, and is its own inverse when the momentum p, ``(C, *event)``, is negated. Cost: L scores.
    For a `ForcedTarget` s is the force in every update, and the log-density is evaluated at the end
    only. Other arguments as for `step`.

    Example:
        For a constant density the path is a straight line.

        >>> flat = target_of(lambda x: 0.0 * x.sum(-1))
        >>> state, _ = leapfrog(flat, start(flat, torch.zeros(1, 1)), torch.ones(1, 1), 0.5, 4)
        >>> state.x.item()
        2.0
    """
    h = step_sizes(step_size, state.x)
    half = 0.5 * h
    x, log_density, score = state
    kick = half * score
    for remaining in reversed(range(num_leapfrog)):
        momentum = momentum + kick
        x = x + h * momentum
        if remaining and isinstance(target, ForcedTarget):
            score = target.force_at(x)
        else:
            log_density, score = ask(target, x)
        kick = half * score
        momentum = momentum + kick
    return HMCState(x, log_density, score), momentum


def move(
    state: HMCState, target: Target, noise: HMCNoise, step_size: float | Tensor, num_leapfrog: int
) -> tuple[HMCState, HMCInfo]:
    """One step with given noise: a leapfrog path, accepted with probability ``min(1, e^-dH)``.

    ``H = |p|^2 / 2 - log p(x)``. A path that ends with an energy of NaN is rejected. Arguments as
    for `step`, with noise from `draw`.

    Example:
        A uniform number of one rejects every proposal.

        >>> normal = target_of(lambda x: -0.5 * x.square().sum(-1))
        >>> noise = HMCNoise(torch.ones(1, 1), torch.ones(1))
        >>> move(start(normal, torch.ones(1, 1)), normal, noise, 0.1, 3)[0].x.item()
        1.0
    """
    advice = "take them from draw(x)"
    check_shape(noise.momentum, state.x.shape, "momenta must have the shape of x, {}", advice)
    check_shape(noise.uniform, state.x.shape[:1], "uniform numbers must have shape {}", advice)
    proposal, momentum = leapfrog(target, state, noise.momentum, step_size, num_leapfrog)
    axes = event_axes(state.x)
    kinetic = 0.5 * (inner(momentum, momentum, axes) - inner(noise.momentum, noise.momentum, axes))
    energy_error = kinetic - (proposal.log_density - state.log_density)
    acceptance = torch.exp(-energy_error).clamp(max=1).nan_to_num(nan=0.0)
    accepted = noise.uniform < acceptance
    pairs = zip(proposal, state)
    chosen = [torch.where(per_chain(accepted, old), new, old) for new, old in pairs]
    return HMCState(*chosen), HMCInfo(acceptance, accepted, energy_error)


def step(
    state: HMCState,
    target: Target,
    step_size: float | Tensor,
    num_leapfrog: int = 10,
    generator: torch.Generator | None = None,
) -> tuple[HMCState, HMCInfo]:
    """One step of Hamiltonian Monte Carlo, which leaves the target invariant.

    Args:
        state: from `start` or an earlier step with the same target.
        target: log-density and score, see `target_of`; or a `ForcedTarget`.
        step_size: h, a number or one per chain, ``(C,)``.
        num_leapfrog: L, number of position updates; each costs one score.
        generator: source of randomness; None is torch's default generator.

    Example:
        Small steps conserve energy, so nearly all of them are accepted.

        >>> normal = target_of(lambda x: -0.5 * x.square().sum(-1))
        >>> state, info = step(start(normal, torch.zeros(1000, 2)), normal, step_size=0.01)
        >>> bool(info.acceptance.mean() > 0.99)
        True
    """
    state = checked_state(state)
    check_count(num_leapfrog, "num_leapfrog", "ten is a common choice")
    check_step_size(step_size, state.x)
    return move(state, target, draw(state.x, generator), step_size, num_leapfrog)

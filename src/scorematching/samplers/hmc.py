"""Hamiltonian Monte Carlo: one step of many chains, as a pure function.

A step is ``draw``, the only random part, then ``move``, which is deterministic. Nothing here
adapts: a step size is an argument, and `adapt_step_size` proposes the next one from what a step
reported, to whoever may change it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_count, check_depends, check_generator, check_log_density
from scorematching._shapes import event_axes, inner
from scorematching.types import LogDensity

Target = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A log-density with its score, ``x: (C, *event) -> ((C,), (C, *event))``."""


class HMCState(NamedTuple):
    """Where C chains are, and what the target says there.

    Attributes:
        x: positions ``(C, *event)``.
        log_density: ``(C,)``.
        score: ``(C, *event)``.
    """

    x: Tensor
    log_density: Tensor
    score: Tensor


class HMCNoise(NamedTuple):
    """The randomness of one step.

    Attributes:
        momentum: standard normal, ``(C, *event)``.
        uniform: between 0 and 1, ``(C,)``; a proposal is taken where it is below the acceptance.
    """

    momentum: Tensor
    uniform: Tensor


class HMCInfo(NamedTuple):
    """What happened in one step.

    Attributes:
        acceptance: probability with which each proposal is accepted, ``(C,)``.
        accepted: whether it was, ``(C,)``.
        energy_error: energy gained along the path, ``(C,)``; zero for exact dynamics.
    """

    acceptance: Tensor
    accepted: Tensor
    energy_error: Tensor


def target_of(log_density: LogDensity) -> Target:
    """A log-density with its score by automatic differentiation; no graph is kept.

    Args:
        log_density: callable, ``(C, *event) -> (C,)``; row i of its output may depend on row i of
            its input only.

    Returns:
        A function ``x -> (log-density (C,), score (C, *event))``.

    Example:
        >>> value, score = target_of(lambda x: -0.5 * x.square().sum(-1))(torch.ones(1, 2))
        >>> value.tolist(), score.tolist()
        ([-1.0], [[-1.0, -1.0]])
    """

    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            value = log_density(x)
            check_log_density(value, x, feature_axes=0)
            check_depends(value.requires_grad, "log-density")
            (score,) = torch.autograd.grad(value.sum(), x, allow_unused=True)
        check_depends(score is not None, "log-density")
        return value.detach(), score

    return target


def start(target: Target, x: Tensor) -> HMCState:
    """The state of chains that begin at ``x: (C, *event)``."""
    return HMCState(x, *target(x))


def draw(x: Tensor, generator: torch.Generator | None = None) -> HMCNoise:
    """The randomness of one step of chains at ``x: (C, *event)``."""
    check_generator(generator, x)
    momentum = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    uniform = torch.rand(x.shape[0], generator=generator, dtype=x.dtype, device=x.device)
    return HMCNoise(momentum, uniform)


def leapfrog(
    target: Target,
    state: HMCState,
    momentum: Tensor,
    step_size: float | Tensor,
    num_leapfrog: int,
) -> tuple[HMCState, Tensor]:
    """Hamiltonian dynamics by the leapfrog rule, with unit masses.

    L times ``p <- p + (h/2) s(x)``, ``x <- x + h p``, ``p <- p + (h/2) s(x)``. The map preserves
    volume, and run from its end with the momentum turned round it leads back. Cost: L scores.

    Args:
        target: log-density and score.
        state: where to begin.
        momentum: p, ``(C, *event)``.
        step_size: h, a number or one per chain, ``(C,)``.
        num_leapfrog: L, number of position updates.

    Returns:
        State and momentum at the end of the path.
    """
    h = _per_chain(step_size, state.x)
    x, log_density, score = state
    for _ in range(num_leapfrog):
        momentum = momentum + 0.5 * h * score
        x = x + h * momentum
        log_density, score = target(x)
        momentum = momentum + 0.5 * h * score
    return HMCState(x, log_density, score), momentum


def move(
    state: HMCState,
    target: Target,
    noise: HMCNoise,
    step_size: float | Tensor,
    num_leapfrog: int,
) -> tuple[HMCState, HMCInfo]:
    """One step with given noise: a leapfrog path, accepted with probability ``min(1, e^-dH)``.

    ``H = |p|^2 / 2 - log p(x)``. A path that ends where the energy is not a number is rejected.

    Args:
        state: where the chains are.
        target: log-density and score.
        noise: from `draw`.
        step_size: h, a number or one per chain, ``(C,)``.
        num_leapfrog: L, number of position updates.

    Returns:
        The next state, and what happened.
    """
    proposal, momentum = leapfrog(target, state, noise.momentum, step_size, num_leapfrog)
    axes = event_axes(state.x)
    kinetic = 0.5 * (inner(momentum, momentum, axes) - inner(noise.momentum, noise.momentum, axes))
    energy_error = kinetic - (proposal.log_density - state.log_density)
    acceptance = torch.exp(-energy_error).clamp(max=1).nan_to_num(nan=0.0)
    accepted = noise.uniform < acceptance
    chosen = [_where(accepted, new, old) for new, old in zip(proposal, state)]
    return HMCState(*chosen), HMCInfo(acceptance, accepted, energy_error)


def step(
    state: HMCState,
    target: Target,
    step_size: float | Tensor,
    num_leapfrog: int = 10,
    generator: torch.Generator | None = None,
) -> tuple[HMCState, HMCInfo]:
    """One step of Hamiltonian Monte Carlo, which leaves the target's law invariant.

    Args:
        state: where the chains are, from `start` or an earlier step with the same target.
        target: log-density and score, see `target_of`.
        step_size: h, a number or one per chain, ``(C,)``.
        num_leapfrog: L, number of position updates; each costs one score.
        generator: source of randomness; None is torch's default generator.

    Returns:
        The next state, and what happened.

    Example:
        Small steps conserve energy, so nearly all of them are accepted.

        >>> normal = target_of(lambda x: -0.5 * x.square().sum(-1))
        >>> state, info = step(start(normal, torch.zeros(1000, 2)), normal, step_size=0.01)
        >>> bool(info.acceptance.mean() > 0.99)
        True
    """
    check_count(num_leapfrog, "num_leapfrog", "ten is a common choice")
    return move(state, target, draw(state.x, generator), step_size, num_leapfrog)


def adapt_step_size(
    step_size: float | Tensor, acceptance: Tensor, wanted: float = 0.65, rate: float = 0.5
) -> float | Tensor:
    """A step size nearer to the one with the wanted acceptance, ``h exp(rate (a - wanted))``.

    Chains whose step size depends on where they have been no longer leave the target invariant:
    adapt before the chains that count, or on other chains.

    Args:
        step_size: h, a number or one per chain.
        acceptance: a, of the chains that share h; their mean counts where h is a number.
        wanted: acceptance to aim at; 0.65 is best for many coordinates.
        rate: how fast.

    Returns:
        The next step size, of the kind that came in.

    Example:
        >>> adapt_step_size(0.1, torch.tensor([0.5, 0.75]), wanted=0.625)
        0.1
    """
    if isinstance(step_size, Tensor):
        return step_size * torch.exp(rate * (acceptance - wanted))
    factor = torch.exp(rate * (acceptance.double().mean() - wanted))
    return step_size * factor.item()


def _per_chain(step_size: float | Tensor, x: Tensor) -> float | Tensor:
    """A step size that multiplies ``x: (C, *event)``."""
    if not isinstance(step_size, Tensor):
        return step_size
    return step_size.reshape(-1, *[1] * event_axes(x))


def _where(accepted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(accepted.reshape(-1, *[1] * (old.ndim - 1)), new, old)

"""Adaptation of step sizes to a wanted acceptance.

Chains whose step size depends on their own history do not leave the target invariant. Adapt in a
warm-up, or on other chains.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import check_positive, check_share, is_number


class Adaptation(NamedTuple):
    """The state of an adaptation by dual averaging.

    Attributes:
        log_step_size: logarithm of the next step size, any shape.
        log_average: logarithm of the average step size, which converges; the one to keep.
        shortfall: running mean of wanted minus observed acceptance.
        centre: the value towards which log step sizes are regularised.
        num: number of acceptances so far.

    Example:
        >>> state = begin_adaptation(0.1)
        >>> round(state.step_size.item(), 6), state.num
        (0.1, 0)
    """

    log_step_size: Tensor
    log_average: Tensor
    shortfall: Tensor
    centre: Tensor
    num: int

    @property
    def step_size(self) -> Tensor:
        """The next step size."""
        return self.log_step_size.exp()

    @property
    def average(self) -> Tensor:
        """The step size to keep after the adaptation."""
        return self.log_average.exp()


def begin_adaptation(step_size: float | Tensor) -> Adaptation:
    """The initial state of an adaptation.

    Args:
        step_size: first guess, a number, or a tensor of numbers that are adapted independently.

    Returns:
        The state. Its centre is ten times the guess, since steps that are too large are corrected
        faster than steps that are too small.

    Example:
        >>> begin_adaptation(torch.tensor([0.1, 0.2])).step_size.shape
        torch.Size([2])
    """
    least = step_size.min().item() if isinstance(step_size, Tensor) else step_size
    check_positive(least, "step_size", "0.1 is a start for a density of unit scale")
    if not isinstance(step_size, Tensor):
        step_size = torch.tensor(float(step_size), dtype=torch.float64)
    log = step_size.log()
    return Adaptation(log, log, torch.zeros_like(log), log + math.log(10), 0)


def adapt(state: Adaptation, acceptance: float | Tensor, wanted: float = 0.65) -> Adaptation:
    """The state after one more step: Nesterov's dual averaging.

    With ``a`` the acceptance of step n, and constants ``t0 = 10, gamma = 0.05, kappa = 0.75``::

        shortfall  <- (1 - 1/(n + t0)) shortfall + (wanted - a) / (n + t0)
        log h      <- centre - sqrt(n)/gamma * shortfall
        average    <- n^-kappa log h + (1 - n^-kappa) average

    Args:
        state: before the step.
        acceptance: of the chains, averaged if they share one step size.
        wanted: the wanted acceptance: 0.65 for Hamiltonian paths, 0.574 for Langevin steps.

    Reference: Hoffman and Gelman (2014), The No-U-Turn Sampler, section 3.2.

    Example:
        >>> lower = adapt(begin_adaptation(1.0), torch.tensor(0.0))
        >>> higher = adapt(begin_adaptation(1.0), torch.tensor(1.0))
        >>> bool(lower.step_size < higher.step_size)
        True
    """
    _check_rates(acceptance, wanted)
    n = state.num + 1
    share, weight = 1 / (n + 10), n**-0.75
    gap = wanted - _for_each(torch.as_tensor(acceptance).to(state.shortfall), state.shortfall)
    shortfall = (1 - share) * state.shortfall + share * gap
    log = state.centre - math.sqrt(n) / 0.05 * shortfall
    average = weight * log + (1 - weight) * state.log_average
    return Adaptation(log, average, shortfall, state.centre, n)


def adapt_step_size(
    step_size: float | Tensor,
    acceptance: float | Tensor,
    wanted: float = 0.65,
    rate: float = 0.5,
) -> float | Tensor:
    """The next step size, ``h exp(rate (a - wanted))``, for a target that changes between steps.

    Unlike `adapt`, whose average converges, it follows the target at a constant rate.

    Args:
        step_size: h, a number or one per chain.
        acceptance: a, of the chains that share h; averaged if h is one number.
        wanted: the wanted acceptance; 0.65 is best for many coordinates.
        rate: of the adaptation.

    Example:
        >>> adapt_step_size(0.1, torch.tensor([0.5, 0.75]), wanted=0.625)
        0.1
    """
    _check_rates(acceptance, wanted)
    check_positive(rate, "rate", "0.5 follows a target that changes fast")
    if not isinstance(step_size, Tensor):
        check_positive(step_size, "step_size", "0.1 is a start for a density of unit scale")
    if not isinstance(acceptance, Tensor):
        acceptance = torch.tensor(acceptance, dtype=torch.float64)
    if isinstance(step_size, Tensor):
        dtype = torch.result_type(step_size, 1.0)  # a step size may be a whole number
        acceptance = _for_each(acceptance.to(step_size.device, dtype), step_size)
        return step_size * torch.exp(rate * (acceptance - wanted))
    return step_size * math.exp(rate * (acceptance.double().mean().item() - wanted))


def _for_each(acceptance: Tensor, step_size: Tensor) -> Tensor:
    """The acceptance of each step size: the mean over all chains, if they share one."""
    if not step_size.ndim:
        return acceptance.mean()
    axes = zip(reversed(acceptance.shape), reversed(step_size.shape))
    if acceptance.ndim > step_size.ndim or any(a not in (1, b) for a, b in axes):
        raise ValueError(
            f"acceptance must have the shape of the step size, {tuple(step_size.shape)}, got "
            f"{tuple(acceptance.shape)}; take the mean over the chains that share a step size"
        )
    return acceptance


def _check_rates(acceptance: Any, wanted: Any) -> None:
    """Require shares of accepted steps; those in tensors are not read, which may wait for a GPU."""
    check_share(wanted, "wanted", "0.65 for Hamiltonian paths, 0.574 for Langevin steps")
    if not isinstance(acceptance, Tensor) and not (is_number(acceptance) and 0 <= acceptance <= 1):
        raise ValueError(
            f"acceptance must lie between 0 and 1, got {acceptance!r}; take it from the second "
            "result of a step"
        )

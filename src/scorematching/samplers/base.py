"""What samplers share: targets, states of chains and helpers for rows of chains."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import (
    can_read_values,
    check_batch,
    check_depends,
    check_log_density,
    check_positive,
    check_shape,
    check_type,
    is_number,
)
from scorematching._shapes import event_axes
from scorematching.derivatives.repeats import check_repeats
from scorematching.types import LogDensity, Vector

Target = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A log-density with its score, ``x: (C, *event) -> ((C,), (C, *event))``."""


class State(NamedTuple):
    """Positions of C chains, with log-density and score there.

    Attributes:
        x: positions ``(C, *event)``.
        log_density: ``(C,)``.
        score: ``(C, *event)``; of a `ForcedTarget` the force.

    Example:
        >>> state = start(target_of(lambda x: -0.5 * x.square().sum(-1)), torch.ones(1, 2))
        >>> state.x.tolist(), state.log_density.tolist(), state.score.tolist()
        ([[1.0, 1.0]], [-1.0], [[-1.0, -1.0]])
    """

    x: Tensor
    log_density: Tensor
    score: Tensor


def target_of(log_density: LogDensity) -> Target:
    """A `Target`: a log-density with its score by automatic differentiation, both detached.

    Args:
        log_density: callable, ``(C, *event) -> (C,)``; row i of its output may depend on row i of
            its input only.

    Example:
        >>> value, score = target_of(lambda x: -0.5 * x.square().sum(-1))(torch.ones(1, 2))
        >>> value.tolist(), score.tolist()
        ([-1.0], [[-1.0, -1.0]])
    """
    advice = "pass the function or module itself, or the method log_density of a field"
    check_type(log_density, Callable, "log_density must be callable", advice)

    def target(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            value = log_density(x.clone())  # it may change its points in place
            check_log_density(value, x, feature_axes=0)
            check_depends(value.requires_grad, "log-density")
            (score,) = torch.autograd.grad(value.sum(), x, allow_unused=True)
        check_depends(score is not None, "log-density")
        return value.detach(), score

    return target


def ask(target: Target, x: Tensor) -> tuple[Tensor, Tensor]:
    """Log-densities and scores at points; requires that the target returns both.

    The log-densities of two chains, unpacked, would pass as a log-density and a score.
    """
    found = target(x.clone())  # it may change its points in place
    if isinstance(found, tuple | list) and len(found) == 2:
        shapes = [tuple(part.shape) if isinstance(part, Tensor) else None for part in found]
        if shapes == [x.shape[:1], x.shape]:
            return found[0], found[1]
    raise TypeError(
        f"target must return log-densities {tuple(x.shape[:1])} and scores {tuple(x.shape)}, got "
        f"{type(found).__name__}; pass samplers.target_of(log_density), not the log-density"
    )


@dataclass(frozen=True)
class ForcedTarget:
    """A `Target` whose paths follow a given force instead of its score.

    A step of `mala` or `hmc` leaves the log-density invariant for every force: each update changes
    the position by a function of the momentum, or the momentum by a function of the position, so
    the path preserves volume and leads back when the momentum is negated, and it is accepted by the
    log-density alone. A force far from the score costs acceptance. So the force may be computed
    from a cheaper model or in a lower precision. It is evaluated at every position of a path, the
    log-density at its end only, without a gradient.

    Args:
        log_density: callable, ``(C, *event) -> (C,)``.
        force: callable, ``(C, *event) -> (C, *event)``, which returns the same for the same x;
            row i of its output may depend on row i of its input only.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> value, force = ForcedTarget(normal, lambda x: -0.8 * x)(torch.ones(1, 2))
        >>> value.tolist(), force.tolist()
        ([-1.0], [[-0.800000011920929, -0.800000011920929]])
    """

    log_density: LogDensity
    force: Vector

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density ``(C,)`` and force ``(C, *event)``, both detached."""
        with torch.no_grad():
            value = self.log_density(x.clone())  # functions may change their points in place
        check_log_density(value, x, feature_axes=0)
        return value, self.force_at(x)

    def force_at(self, x: Tensor) -> Tensor:
        """The force, ``(C, *event)``, detached; its shape is checked."""
        found = self.force(x.clone())
        wanted = "force must return one vector per chain, shape {} like x"
        check_shape(found, x.shape, wanted, "it takes the place of the score")
        return found.detach()


def start(target: Target, x: Tensor) -> State:
    """The initial state of chains at given points ``x: (C, *event)``.

    Raises:
        ValueError: if values of the target change from call to call, or with the other chains, as
            those of dropout and batch normalisation in training mode do; or if they are NaN, where
            no step would ever be accepted.

    Example:
        >>> start(target_of(lambda x: x.sum(-1)), torch.ones(3, 2)).log_density.tolist()
        [2.0, 2.0, 2.0]
    """
    check_batch(x)
    if can_read_values(x):
        check_repeats(lambda z: ask(target, z)[0], x)
    state = State(x, *ask(target, x))
    if not can_read_values(x):
        return state
    bad = state.log_density.isnan() | state.score.isnan().flatten(1).any(1)
    if bool(bad.any()):
        raise ValueError(
            f"the log-density and its score must be numbers where chains start, got NaN at "
            f"{int(bad.sum())} of {len(bad)} points; start where the density is positive"
        )
    return state


def per_chain(value: Any, x: Tensor) -> Any:
    """A number, or one for each chain, in a shape that goes with ``x: (C, *event)``."""
    return value.reshape(-1, *[1] * event_axes(x)) if isinstance(value, Tensor) else value


def step_sizes(step_size: float | Tensor, x: Tensor) -> Any:
    """Step sizes in a shape that goes with x, and in its dtype, which chains keep.

    `begin_adaptation` gives step sizes in double precision, on the CPU.
    """
    return per_chain(step_size.to(x) if isinstance(step_size, Tensor) else step_size, x)


def checked_state(state: Any) -> State:
    """A state of chains, detached: a graph through all steps would fill the memory."""
    advice = "begin with samplers.start(target, x), then pass on what each step returns"
    check_type(state, State, "state must be a State of chains", advice)
    return State(*(part.detach() for part in state))


def check_step_size(step_size: Any, x: Tensor) -> None:
    """Require a positive number, or a tensor with one entry for each chain.

    The entries of a tensor are not checked, since that would synchronise with the GPU.
    """
    if is_number(step_size):
        check_positive(step_size, "step_size", "0.1 is a start for a density of unit scale")
        return
    advice = "use one number, or one for each chain"
    check_type(step_size, Tensor, "step_size must be a number or a tensor", advice)
    if step_size.numel() not in (1, x.shape[0]):
        raise ValueError(
            f"step_size must be one number or one for each chain, shape ({x.shape[0]},), got "
            f"{tuple(step_size.shape)}; repeat it for the chains that share it"
        )

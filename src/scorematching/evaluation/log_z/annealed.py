"""Log Z of an unnormalised log-density by annealed importance sampling."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count
from scorematching.distributions import Distribution
from scorematching.evaluation.log_z.ais import ais
from scorematching.evaluation.log_z.importance import LogZEstimate, check_distribution, numbers
from scorematching.evaluation.log_z.weights import LogSums
from scorematching.types import LogDensity

_PILOT_CHAINS = 64


@dataclass(frozen=True, eq=False)
class AnnealedLogZ(LogZEstimate):
    """The result of `ais_log_z`.

    Attributes:
        log_weights: of every chain, ``(C,)``.
        betas: inverse temperatures, from 0 to 1, ``(T + 1,)``.
        step_sizes: of the moves at the temperatures between, ``(T - 1,)``.
        acceptance: mean acceptance of those moves, ``(T - 1,)``; one without moves.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> normal = Gaussian(torch.zeros(2), torch.eye(2))
        >>> estimate = ais_log_z(lambda x: normal(x) + 3.0, normal, num_chains=4, num_steps=5)
        >>> estimate.log_weights.shape, estimate.betas.shape, round(estimate.log_z, 4)
        (torch.Size([4]), torch.Size([6]), 3.0)
    """

    log_weights: Tensor = field(repr=False)
    betas: Tensor = field(repr=False)
    step_sizes: Tensor = field(repr=False)
    acceptance: Tensor = field(repr=False)


def ais_log_z(
    log_density: LogDensity,
    start: Distribution,
    num_chains: int = 1000,
    num_steps: int = 200,
    schedule: str | Tensor = "sigmoid",
    num_leapfrog: int = 10,
    step_size: float | Tensor | None = None,
    generator: torch.Generator | None = None,
    capture: bool = True,
    max_memory: int | None = None,
) -> AnnealedLogZ:
    """Log of the integral of ``exp(log_density)``, by annealed importance sampling.

    This is `ais` from a distribution q that can be sampled, with one group of chains and
    further chains to adapt the step sizes. Cost: about ``num_steps * (num_leapfrog + 1)`` scores
    of f per chain.

    Args:
        log_density: f, callable, ``(N, D) -> (N,)``, differentiable.
        start: q, in the dtype and on the device of f.
        num_chains: C, chains, all run at once.
        num_steps: T, steps from start to density; this and all further arguments as for `ais`.
        schedule: of the temperatures.
        num_leapfrog: leapfrog steps per move.
        step_size: of the moves; None adapts them.
        generator: source of randomness.
        capture: whether to record a CUDA graph, on a GPU.
        max_memory: bytes that may be taken beside f and the initial states of the chains.

    Raises:
        TypeError: the start is not a `Distribution`.
        ValueError: an argument is out of range, or f returns another shape, NaN or plus infinity.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> normal = Gaussian(torch.zeros(2), torch.eye(2))
        >>> narrow = lambda x: -8 * (x - 2).square().sum(-1)  # Z = 2 pi / 16
        >>> g = torch.Generator().manual_seed(0)
        >>> estimate = ais_log_z(narrow, normal, num_chains=200, num_steps=50, generator=g)
        >>> truth = torch.tensor(2 * torch.pi / 16).log().item()
        >>> abs(estimate.log_z - truth) < 5 * estimate.standard_error
        True
    """
    check_distribution(start, "start")
    check_count(num_chains, "num_chains", "1000 is the default")
    x = start.sample(num_chains, generator)
    adapts = step_size is None
    pilots = start.sample(min(num_chains, _PILOT_CHAINS), generator) if adapts else None
    path = (num_steps, schedule, num_leapfrog, step_size)
    limits: dict[str, Any] = {"capture": capture, "max_memory": max_memory}
    found = ais(start, log_density, x, pilots, *path, generator=generator, **limits)
    log_weights = found.log_weights[:, 0] + start.log_z
    estimate = numbers(LogSums.of(log_weights))
    sizes, acceptance = found.step_sizes[:, 0].double(), found.acceptance[:, 0]
    return AnnealedLogZ(*estimate, log_weights, found.betas, sizes, acceptance)

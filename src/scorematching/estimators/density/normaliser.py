"""Log Z of a tilted base, with its error, and a bracket."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scorematching.distributions import Distribution
from scorematching.evaluation import LogZEstimate, ais_log_z, bidirectional

_MIN_EFFECTIVE, _MIN_CHAINS = 100.0, 20.0
_CHAINS, _PILOTS, _STEPS, _BRACKET_STEPS, _LEAPFROG = 400, 64, 200, 60, 5
_BATCH_SIZE = 4096


@dataclass(frozen=True)
class Normaliser:
    """Log of the integral of ``q0 exp(t)``.

    Attributes:
        log_z: the estimate.
        standard_error: its standard error.
        effective_sample_size: of the weights.
        method: "exact", "importance sampling" or "annealed importance sampling".
        failure: why there is no estimate; None if there is one.

    Example:
        >>> Normaliser.exact().log_z
        0.0
    """

    log_z: float
    standard_error: float
    effective_sample_size: float
    method: str
    failure: str | None = None

    @staticmethod
    def exact() -> Normaliser:
        """That of a base without a tilt."""
        return Normaliser(0.0, 0.0, math.inf, "exact")


def normalise(
    tilt: Callable[[Tensor], Tensor],
    base: Distribution,
    num: int,
    generator: torch.Generator,
) -> Normaliser:
    """Estimate log Z by ``num`` samples of the base, or by annealing where their weights are thin.

    The `failure` of the estimate is set where both methods fail.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> normal = Gaussian(torch.zeros(1), torch.eye(1))
        >>> found = normalise(lambda x: x[:, 0], normal, 10_000, torch.Generator().manual_seed(0))
        >>> abs(found.log_z - 0.5) < 5 * found.standard_error  # E exp(x) = exp(1/2)
        True
    """
    found = LogZEstimate.of(tilt_at_samples(tilt, base, num, generator))
    if found.effective_sample_size >= _MIN_EFFECTIVE:
        return _result(found, "importance sampling")
    annealed = ais_log_z(
        lambda x: base(x) + tilt(x),
        base,
        _CHAINS,
        _STEPS,
        num_leapfrog=_LEAPFROG,
        generator=generator,
    )
    failure = None
    if annealed.effective_sample_size < _MIN_CHAINS:
        failure = (
            f"importance sampling has an effective sample size of "
            f"{found.effective_sample_size:.3g} in {num} samples and annealed importance sampling "
            f"of {annealed.effective_sample_size:.3g} in {_CHAINS} chains"
        )
    return _result(annealed, "annealed importance sampling", failure)


def _result(found: LogZEstimate, method: str, failure: str | None = None) -> Normaliser:
    error, effective = found.standard_error, found.effective_sample_size
    return Normaliser(found.log_z, error, effective, method, failure)


@torch.no_grad()
def tilt_at_samples(
    tilt: Callable[[Tensor], Tensor], base: Distribution, num: int, generator: torch.Generator
) -> Tensor:
    """The tilt at samples of the base, which are the log-weights, ``(num,)``."""
    sizes = [_BATCH_SIZE] * (num // _BATCH_SIZE) + [num % _BATCH_SIZE]
    return torch.cat([tilt(base.sample(n, generator)) for n in sizes if n])


def bracket(
    tilt: Callable[[Tensor], Tensor],
    base: Distribution,
    samples: Tensor,
    generator: torch.Generator,
) -> tuple[float, float]:
    """Log Z from below and from above, by annealing in both directions.

    The first value is too low on average, the second too high. Reverse chains start at the samples
    ``(C, D)``, which are points of the tilted density.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> normal, g = Gaussian(torch.zeros(1), torch.eye(1)), torch.Generator().manual_seed(0)
        >>> low, high = bracket(lambda x: x[:, 0], normal, 1 + normal.sample(200, g), g)
        >>> low - 0.1 < 0.5 < high + 0.1
        True
    """
    starts, pilots = base.sample(len(samples), generator), base.sample(_PILOTS, generator)
    found = bidirectional(
        base,
        lambda x: base(x) + tilt(x),
        starts,
        samples,
        pilots,
        num_steps=_BRACKET_STEPS,
        num_leapfrog=_LEAPFROG,
        generator=generator,
    )
    return found.lower.item(), found.upper.item()

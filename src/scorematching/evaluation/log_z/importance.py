"""Log Z of an unnormalised log-density by importance sampling, with its standard error."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_shape, check_type, is_number
from scorematching._memory import Chunks, joined, limited
from scorematching.derivatives.repeats import check_repeats
from scorematching.distributions import Distribution
from scorematching.evaluation.estimate import Estimate
from scorematching.evaluation.log_z.weights import LogSums, log_densities
from scorematching.types import LogDensity

_BATCH_SIZE = 16384


@dataclass(frozen=True)
class LogZEstimate:
    """An estimate of log Z with its precision.

    Attributes:
        log_z: the estimate.
        standard_error: its standard error, by the delta method.
        effective_sample_size: number of equal weights with the same precision; where it is small
            the standard error is unreliable too.
        count: number of weights.

    Example:
        >>> estimate = LogZEstimate.of(torch.full((10,), 2.0))
        >>> round(estimate.log_z, 6), estimate.standard_error, estimate.count
        (2.0, 0.0, 10)
    """

    log_z: float
    standard_error: float
    effective_sample_size: float
    count: int

    @staticmethod
    def of(log_weights: Tensor) -> LogZEstimate:
        """The estimate from independent log-weights ``(n,)``.

        Raises:
            ValueError: a weight is NaN or plus infinity.
        """
        advice = "pass one number per sample"
        check_shape(log_weights, (None,), "log_weights must have shape (n,)", advice)
        return LogZEstimate(*numbers(LogSums.of(log_weights)))

    def __str__(self) -> str:
        estimate = Estimate(self.log_z, self.standard_error, self.count)
        return f"{estimate}, effective sample size {self.effective_sample_size:.0f}"


def importance_log_z(
    log_density: LogDensity,
    proposal: Distribution,
    num: int = 1_000_000,
    batch_size: int = _BATCH_SIZE,
    generator: torch.Generator | None = None,
    max_memory: int | None = None,
) -> LogZEstimate:
    """Log of the integral of ``exp(log_density)``, by importance sampling.

    ``log Z = log mean_i exp(f(x_i) - log q(x_i))`` for x_i from the proposal q. For weights of
    finite variance, q must have tails as heavy as those of the density.

    Args:
        log_density: f, callable, ``(N, D) -> (N,)``.
        proposal: q, in the dtype and on the device of f.
        num: number of samples.
        batch_size: samples evaluated at a time, which limits memory.
        generator: source of randomness; None is torch's default generator.
        max_memory: bytes that may be taken beside densities; the samples of a batch, which do not
            depend on it, are then evaluated in parts.

    Raises:
        ValueError: f returns NaN or plus infinity, or depends on the batch or the call.

    Example:
        If the proposal is right up to a constant, one sample is enough.

        >>> from scorematching.distributions import Gaussian
        >>> normal = Gaussian(torch.zeros(2), torch.eye(2))
        >>> round(importance_log_z(lambda x: normal(x) + 2.0, normal, num=100).log_z, 4)
        2.0
    """
    check_distribution(proposal, "proposal")
    check_count(num, "num", "the paper takes 1000000")
    check_count(batch_size, "batch_size", "it limits memory; 16384 suits most models")
    with limited(max_memory, "take a smaller batch_size") as budget:
        chunks = Chunks(batch_size, budget)
        weigh = functools.partial(_log_weights, log_density, proposal)

        def draw_weights(done: int) -> Tensor:
            x = proposal.sample(min(batch_size, num - done), generator)
            if done == 0:
                check_repeats(log_density, x, limited=max_memory is not None)
            return joined(chunks, weigh, [x])

        weights = map(draw_weights, range(0, num, batch_size))
        return LogZEstimate(*numbers(functools.reduce(LogSums.merge, map(LogSums.of, weights))))


def numbers(sums: LogSums) -> tuple[float, float, float, int]:
    """Estimate, standard error, effective sample size and count, for a `LogZEstimate`."""
    first, error, effective = sums.log_mean, sums.standard_error, sums.effective_sample_size
    return first.item(), error.item(), effective.item(), sums.num


def check_distribution(value: Any, name: str) -> None:
    """Require a `Distribution`."""
    advice = "use scorematching.distributions.Gaussian, for example"
    check_type(value, Distribution, f"{name} must be a Distribution", advice)


def check_effective(log_z: LogZEstimate, least: float | None = None) -> None:
    """Require an effective sample size; None is 100, or count / 1000 if that is larger."""
    advice = "pass the result of importance_log_z or ais_log_z"
    check_type(log_z, LogZEstimate, "log_z must be an estimate of log Z", advice)
    if least is None:
        least = max(100.0, log_z.count / 1000)
    if not is_number(least) or not least >= 0:
        raise ValueError(
            f"min_effective must be a number, zero or more, got {least!r}; None suits most uses"
        )
    if not log_z.effective_sample_size >= least:
        raise ValueError(
            f"log_z must have an effective sample size of at least {least:g}, got "
            f"{log_z.effective_sample_size:.3g} of {log_z.count} samples, too few for an estimate; "
            "use a proposal nearer to the density (wider, if in doubt), or ais_log_z"
        )


@torch.no_grad()
def _log_weights(log_density: LogDensity, proposal: Distribution, x: Tensor) -> Tensor:
    """The weights ``f(x) - log q(x)``, in double precision."""
    return log_densities(log_density, x) - proposal(x).double() + proposal.log_z

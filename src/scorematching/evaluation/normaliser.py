"""Normalising constants: log Z of an unnormalised log-density, with its standard error.

Weights w with ``E[w] = Z`` come from importance sampling, ``w = exp(f(x)) / q(x)`` for x from a
proposal q, or from annealed importance sampling, where chains walk from a start to the target.
What they say about Z is the same arithmetic either way, see `weights`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_log_density, check_points, is_number
from scorematching.distributions import Distribution
from scorematching.evaluation.ais import ais
from scorematching.evaluation.losses import Estimate
from scorematching.evaluation.weights import LogSums, check_log_weights
from scorematching.types import LogDensity

_BATCH_SIZE = 16384
_PILOT_CHAINS = 64


@dataclass(frozen=True)
class LogZEstimate:
    """An estimate of log Z, with what is needed to judge it.

    Attributes:
        log_z: the estimate.
        standard_error: its standard error, by the delta method.
        effective_sample_size: number of equal weights that would be as good; the standard error
            itself is not to be believed where this is small.
        count: number of weights.

    Example:
        >>> estimate = LogZEstimate.of(torch.zeros(10))
        >>> estimate.log_z, estimate.standard_error, estimate.count
        (0.0, 0.0, 10)
    """

    log_z: float
    standard_error: float
    effective_sample_size: float
    count: int

    @staticmethod
    def of(log_weights: Tensor) -> LogZEstimate:
        """The estimate from independent log-weights ``(n,)``.

        Raises:
            ValueError: a weight is NaN or plus infinity, or there are none.
        """
        if log_weights.ndim != 1:
            raise ValueError(
                f"log_weights must have shape (n,), got {tuple(log_weights.shape)}; "
                "pass one number per sample"
            )
        check_log_weights(log_weights)
        return LogZEstimate(*_numbers(LogSums.of(log_weights)))

    def __str__(self) -> str:
        """Estimate, standard error and effective sample size."""
        estimate = Estimate(self.log_z, self.standard_error, self.count)
        return f"{estimate}, effective sample size {self.effective_sample_size:.0f}"


@dataclass(frozen=True, eq=False)
class AnnealedLogZ(LogZEstimate):
    """What annealed importance sampling found.

    Attributes:
        log_weights: of every chain, ``(C,)``.
        betas: inverse temperatures, from 0 to 1, ``(T + 1,)``.
        step_sizes: of the moves at the temperatures between, ``(T - 1,)``.
        acceptance: mean acceptance of those moves, ``(T - 1,)``; one where nothing moves.

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


@dataclass(frozen=True)
class LogLikelihood:
    """A mean log-likelihood, with the errors of both its parts.

    Attributes:
        mean: mean of ``f(x)`` over the points, less log Z.
        standard_error: of both parts together, ``sqrt(data_error^2 + log_z_error^2)``.
        count: number of points.
        data_error: standard error from the choice of points.
        log_z_error: standard error from log Z, the same for all points: it cancels where one
            model is compared with itself on other points, and not between two models.

    Example:
        >>> print(LogLikelihood(-1.5, 0.05, 100, data_error=0.03, log_z_error=0.04))
        -1.50 +- 0.05 (n=100)
    """

    mean: float
    standard_error: float
    count: int
    data_error: float
    log_z_error: float

    def __str__(self) -> str:
        """Mean and standard error, as an `Estimate` prints them."""
        return str(Estimate(self.mean, self.standard_error, self.count))


def importance_log_z(
    log_density: LogDensity,
    proposal: Distribution,
    num: int = 1_000_000,
    batch_size: int = _BATCH_SIZE,
    generator: torch.Generator | None = None,
) -> LogZEstimate:
    """Log of the integral of ``exp(log_density)``, by importance sampling.

    ``log Z = log mean_i exp(f(x_i) - log q(x_i))`` for x_i from the proposal q. Weights have a
    finite variance only where q has tails as heavy as the density's.

    Args:
        log_density: f, callable, ``(N, D) -> (N,)``.
        proposal: q, in the dtype and on the device that f wants.
        num: number of samples.
        batch_size: samples taken at a time, which limits memory.
        generator: source of randomness; None is torch's default generator.

    Returns:
        Estimate, standard error and effective sample size.

    Raises:
        TypeError: the proposal is not a `Distribution`.
        ValueError: f returns another shape, NaN or plus infinity.

    Example:
        Where the proposal is right up to a constant, one sample is enough.

        >>> from scorematching.distributions import Gaussian
        >>> normal = Gaussian(torch.zeros(2), torch.eye(2))
        >>> importance_log_z(lambda x: normal(x) + 2.0, normal, num=100).log_z
        2.0
    """
    _check_distribution(proposal, "proposal")
    check_count(num, "num", "the paper takes 1000000")
    check_count(batch_size, "batch_size", "it limits memory; 16384 points suit most models")
    sums: LogSums | None = None
    for n in _batch_sizes(num, batch_size):
        x = proposal.sample(n, generator)
        log_weights = _log_ratio(log_density, proposal, x)
        check_log_weights(log_weights)
        batch = LogSums.of(log_weights)
        sums = batch if sums is None else sums.merge(batch)
    assert sums is not None
    return LogZEstimate(*_numbers(sums))


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
) -> AnnealedLogZ:
    """Log of the integral of ``exp(log_density)``, by annealed importance sampling.

    Chains walk from q, the start, to the density, see `ais`: this is that function for a start
    that can be sampled, with one group of chains. ``E[w] = Z`` however short the chains. Step
    sizes are found on a few chains of their own. Cost: about ``num_steps * (num_leapfrog + 1)``
    scores of f per chain.

    Args:
        log_density: f, callable, ``(N, D) -> (N,)``, differentiable.
        start: q, in the dtype and on the device that f wants.
        num_chains: C, chains, all run at once.
        num_steps: T, steps from start to density.
        schedule: "sigmoid" (denser near both ends) or "linear", or the betas themselves,
            ``(T + 1,)``, increasing from 0 to 1.
        num_leapfrog: leapfrog steps per move; with 0 nothing moves, and this is importance
            sampling.
        step_size: of the moves: a number, or ``(T - 1,)``, one for each temperature strictly
            between; None finds them.
        generator: source of randomness; None is torch's default generator.
        capture: whether to record a CUDA graph, on a GPU, see `ais`.

    Returns:
        Estimate, standard error and effective sample size, with the log-weights themselves.

    Raises:
        TypeError: the start is not a `Distribution`.
        ValueError: an argument is out of range, or f returns another shape, NaN or plus infinity.

    Reference: Neal (2001), Annealed importance sampling.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> normal = Gaussian(torch.zeros(2), torch.eye(2))
        >>> narrow = lambda x: -8 * (x - 2).square().sum(-1)  # Z = 2 pi / 16
        >>> g = torch.Generator().manual_seed(0)
        >>> estimate = ais_log_z(narrow, normal, num_chains=200, num_steps=50, generator=g)
        >>> abs(estimate.log_z - math.log(2 * math.pi / 16)) < 5 * estimate.standard_error
        True
    """
    _check_distribution(start, "start")
    check_count(num_chains, "num_chains", "a thousand run as fast as one")
    x = start.sample(num_chains, generator)
    pilots = None
    if step_size is None:
        pilots = start.sample(min(num_chains, _PILOT_CHAINS), generator)
    found = ais(
        start,
        log_density,
        x,
        pilots,
        num_steps,
        schedule,
        num_leapfrog,
        step_size,
        generator=generator,
        capture=capture,
    )
    log_weights = found.log_weights[:, 0] + start.log_z
    numbers = _numbers(LogSums.of(log_weights))
    sizes, acceptance = found.step_sizes[:, 0].double(), found.acceptance[:, 0]
    return AnnealedLogZ(*numbers, log_weights, found.betas, sizes, acceptance)


def log_likelihood(
    log_density: LogDensity,
    x: Tensor,
    log_z: LogZEstimate,
    min_effective: float | None = None,
    batch_size: int = _BATCH_SIZE,
) -> LogLikelihood:
    """Mean log-likelihood of points under an unnormalised log-density, ``mean f(x) - log Z``.

    Args:
        log_density: f, callable, ``(N, *event) -> (N,)``.
        x: points ``(N, *event)``.
        log_z: its normalising constant, estimated.
        min_effective: effective sample size that log Z must rest on; None is 100, or one in a
            thousand of its samples where that is more.
        batch_size: points taken at a time.

    Returns:
        Mean, and the standard errors from the points, from log Z and from both.

    Raises:
        ValueError: the effective sample size is too small for log Z to mean anything.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> normal = Gaussian(torch.zeros(2), torch.eye(2))
        >>> double = lambda x: normal(x) + 2.0
        >>> log_z = importance_log_z(double, normal, num=1000)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> round(log_likelihood(double, x, log_z).mean - normal(x).mean().item(), 4)
        0.0
    """
    check_points(x)
    check_count(batch_size, "batch_size", "it limits memory; 16384 points suit most models")
    _check_effective(log_z, min_effective)
    with torch.no_grad():
        values = torch.cat([_values(log_density, batch) for batch in x.split(batch_size)])
    points = Estimate.of(values)
    return LogLikelihood(
        mean=points.mean - log_z.log_z,
        standard_error=math.hypot(points.standard_error, log_z.standard_error),
        count=points.count,
        data_error=points.standard_error,
        log_z_error=log_z.standard_error,
    )


def _numbers(sums: LogSums) -> tuple[float, float, float, int]:
    """Estimate, standard error, effective sample size and count."""
    first, error, effective = sums.log_mean, sums.standard_error, sums.effective_sample_size
    return first.item(), error.item(), effective.item(), sums.num


def _log_ratio(log_density: LogDensity, proposal: Distribution, x: Tensor) -> Tensor:
    """``f(x) - log q(x)`` in double precision, ``(N,)``."""
    with torch.no_grad():
        return _values(log_density, x) - proposal(x).double() + proposal.log_z


def _values(log_density: LogDensity, x: Tensor) -> Tensor:
    """Log-densities of points in double precision, ``(N,)``."""
    values = log_density(x)
    check_log_density(values, x, feature_axes=0)
    return values.double()


def _batch_sizes(num: int, batch_size: int) -> Iterator[int]:
    yield from [batch_size] * (num // batch_size)
    if num % batch_size:
        yield num % batch_size


def _check_distribution(value: Any, name: str) -> None:
    if not isinstance(value, Distribution):
        raise TypeError(
            f"{name} must be a Distribution, got {type(value).__name__}; "
            "use scorematching.distributions.Gaussian, for example"
        )


def _check_effective(log_z: LogZEstimate, min_effective: float | None) -> None:
    if min_effective is None:
        min_effective = max(100.0, log_z.count / 1000)
    if not is_number(min_effective) or min_effective < 0:
        raise ValueError(
            f"min_effective must be a number, zero or more, got {min_effective!r}; "
            "None suits most uses"
        )
    if log_z.effective_sample_size < min_effective:
        raise ValueError(
            f"log_z must rest on an effective sample size of at least {min_effective:g}, got "
            f"{log_z.effective_sample_size:.3g} of {log_z.count} samples, which means nothing; "
            "take a proposal nearer to the density (wider, if in doubt), or use ais_log_z"
        )

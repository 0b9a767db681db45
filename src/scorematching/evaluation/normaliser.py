"""Normalising constants: log Z of an unnormalised log-density, with its standard error.

Weights w with ``E[w] = Z`` come from importance sampling, ``w = exp(f(x)) / q(x)`` for x from a
proposal q, or from annealed importance sampling, where chains walk from a start to the target.
Either way, with n weights::

    log Z = log mean(w),   ESS = sum(w)^2 / sum(w^2),   standard error^2 = (n / ESS - 1) / (n - 1)

the last by the delta method, ``sd(w) / (mean(w) sqrt(n))``. Sums are of logarithms, so nothing
overflows. ``E[log Z]`` lies below the truth by about half the squared standard error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching._checks import (
    check_count,
    check_log_density,
    check_points,
    check_positive,
    is_number,
)
from scorematching.distributions import Distribution
from scorematching.evaluation.losses import Estimate
from scorematching.samplers import hmc
from scorematching.types import LogDensity

_BATCH_SIZE = 16384
_PILOT_CHAINS = 64
_WARM_UP = 20


class LogSums(NamedTuple):
    """Running sums over weights, as logarithms.

    Attributes:
        first: ``log sum w``, ``()``.
        second: ``log sum w^2``, ``()``.
        num: number of weights.
    """

    first: Tensor
    second: Tensor
    num: int

    @classmethod
    def of(cls, log_weights: Tensor) -> LogSums:
        """The sums over some weights, ``(n,)``, in double precision."""
        w = log_weights.double()
        return cls(w.logsumexp(0), (2 * w).logsumexp(0), len(w))

    def merge(self, other: LogSums) -> LogSums:
        """The sums over both sets of weights."""
        first, second = self.first.logaddexp(other.first), self.second.logaddexp(other.second)
        return LogSums(first, second, self.num + other.num)


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
        _check_weights(log_weights)
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
        _check_weights(log_weights)
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
) -> AnnealedLogZ:
    """Log of the integral of ``exp(log_density)``, by annealed importance sampling.

    On the path ``f_t = (1 - beta_t) log q + beta_t f`` from the start q to the density, with
    ``beta_0 = 0`` and ``beta_T = 1``, every chain begins with x_0 from q and collects::

        log w = sum_t (beta_t - beta_(t-1)) (f(x_(t-1)) - log q(x_(t-1)))

    where x_t comes from x_(t-1) by a step of Hamiltonian Monte Carlo that leaves ``exp(f_t)``
    invariant. Then ``E[w] = Z`` however short the chains. Step sizes are found beforehand on a
    few chains of their own, since chains that adapt as they go would not be unbiased, and vary at
    random by a quarter from chain to chain. Cost: about ``num_steps * (num_leapfrog + 1)`` scores
    of f per chain.

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
        >>> abs(estimate.log_z - math.log(2 * math.pi / 16)) < 0.2
        True
    """
    _check_distribution(start, "start")
    check_count(num_chains, "num_chains", "a thousand run as fast as one")
    check_count(num_steps, "num_steps", "more steps give better weights")
    if num_leapfrog != 0:
        check_count(num_leapfrog, "num_leapfrog", "or 0, for no moves")
    betas = _betas(schedule, num_steps)
    path = _Path(log_density, start, betas.tolist(), num_leapfrog, generator)
    if step_size is None:
        step_sizes = path.find_step_sizes(min(num_chains, _PILOT_CHAINS))
    else:
        step_sizes = _step_sizes(step_size, num_steps)
    log_weights, acceptance = path.walk(num_chains, step_sizes)
    _check_weights(log_weights)
    sizes = torch.tensor(step_sizes, dtype=torch.float64)
    return AnnealedLogZ(*_numbers(LogSums.of(log_weights)), log_weights, betas, sizes, acceptance)


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


@dataclass(frozen=True)
class _Path:
    """The geometric path from a start to a density, and chains that walk along it."""

    log_density: LogDensity
    start: Distribution
    betas: list[float]
    num_leapfrog: int
    generator: torch.Generator | None

    def walk(self, num_chains: int, step_sizes: list[float]) -> tuple[Tensor, Tensor]:
        """Log-weights ``(C,)`` of chains, and the mean acceptance of their moves ``(T - 1,)``."""
        x = self.start.sample(num_chains, self.generator)
        log_weights, acceptance = torch.zeros(len(x), dtype=torch.float64).to(x.device), []
        for t, (before, beta) in enumerate(zip(self.betas, self.betas[1:])):
            log_ratio = _log_ratio(self.log_density, self.start, x)
            log_weights = log_weights + (beta - before) * log_ratio
            if t < len(step_sizes):
                x, accepted = self.move(x, beta, step_sizes[t])
                acceptance.append(accepted.mean())
        return log_weights, torch.stack(acceptance) if acceptance else x.new_empty(0)

    def find_step_sizes(self, num_chains: int) -> list[float]:
        """A step size for each temperature strictly between, from chains that are then dropped."""
        x = self.start.sample(num_chains, self.generator)
        between = self.betas[1:-1]
        size, found = self.start.dim**-0.25, []
        for beta in between[:1] * _WARM_UP + between:
            x, acceptance = self.move(x, beta, size)
            found.append(size)
            size = float(hmc.adapt_step_size(size, acceptance))
        return found[len(found) - len(between) :]

    def move(self, x: Tensor, beta: float, step_size: float) -> tuple[Tensor, Tensor]:
        """Chains after one move at a temperature, and the acceptance ``(C,)``."""
        if self.num_leapfrog == 0:
            return x, x.new_ones(len(x))
        target = hmc.target_of(self.between(beta))
        state = hmc.start(target, x)
        # Paths of one length would keep a nearly Gaussian target ringing, all chains in step.
        u = torch.rand(len(x), generator=self.generator, dtype=x.dtype, device=x.device)
        sizes = step_size * (0.75 + 0.5 * u)
        state, info = hmc.step(state, target, sizes, self.num_leapfrog, self.generator)
        return state.x, info.acceptance

    def between(self, beta: float) -> LogDensity:
        """The log-density at an inverse temperature."""
        return lambda x: (1 - beta) * self.start(x) + beta * self.log_density(x)


def _numbers(sums: LogSums) -> tuple[float, float, float, int]:
    """Estimate, standard error, effective sample size and count."""
    first, second, n = sums.first.item(), sums.second.item(), sums.num
    if first == -math.inf:
        return first, math.inf, 0.0, n
    spread = n / math.exp(2 * first - second) - 1
    # What rounding makes of equal weights is no spread.
    if spread < 64 * torch.finfo(torch.float64).eps * max(1.0, abs(second)):
        spread = 0.0
    error = math.sqrt(spread / (n - 1)) if n > 1 else math.nan
    return first - math.log(n), error, n / (1 + spread), n


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


def _betas(schedule: str | Tensor, num_steps: int) -> Tensor:
    """Inverse temperatures from 0 to 1, ``(T + 1,)``."""
    if isinstance(schedule, Tensor):
        _check_betas(schedule, num_steps)
        return schedule.double()
    if schedule == "linear":
        return torch.linspace(0, 1, num_steps + 1, dtype=torch.float64)
    if schedule == "sigmoid":
        s = torch.linspace(-4, 4, num_steps + 1, dtype=torch.float64).sigmoid()
        return (s - s[0]) / (s[-1] - s[0])
    raise ValueError(
        f'schedule must be "sigmoid", "linear" or a tensor of betas, got {schedule!r}; '
        '"sigmoid" is a good start'
    )


def _step_sizes(step_size: float | Tensor, num_steps: int) -> list[float]:
    """One step size for each temperature strictly between."""
    sizes = step_size.tolist() if isinstance(step_size, Tensor) else [step_size] * (num_steps - 1)
    if not isinstance(sizes, list) or len(sizes) != num_steps - 1:
        raise ValueError(
            f"step_size must be a number or have shape (num_steps - 1,) = ({num_steps - 1},), got "
            f"shape {tuple(torch.as_tensor(step_size).shape)}; None finds step sizes"
        )
    for size in sizes:
        check_positive(size, "step_size", "None finds step sizes")
    return sizes


def _check_betas(betas: Tensor, num_steps: int) -> None:
    shape = tuple(betas.shape)
    if shape != (num_steps + 1,):
        raise ValueError(
            f"schedule must have shape (num_steps + 1,) = ({num_steps + 1},), got {shape}; "
            "it holds the betas with both ends"
        )
    if betas[0] != 0 or betas[-1] != 1 or not bool((betas.diff() > 0).all()):
        raise ValueError(
            f"schedule must increase from 0 to 1, got {betas[0]:g} to {betas[-1]:g}; "
            "sort it, drop equal values and rescale it"
        )


def _check_weights(log_weights: Tensor) -> None:
    if log_weights.ndim != 1 or len(log_weights) == 0:
        raise ValueError(
            f"log_weights must have shape (n,) with n >= 1, got {tuple(log_weights.shape)}; "
            "pass one number per sample"
        )
    bad = log_weights.isnan() | (log_weights == math.inf)
    if bool(bad.any()):
        raise ValueError(
            f"log_density must be a number or minus infinity, got NaN or infinity at "
            f"{int(bad.sum())} of {len(log_weights)} samples; check it far from the data"
        )


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

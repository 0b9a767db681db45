"""Annealed importance sampling between two log-densities, and a bracket from both directions.

On the path ``f_t = (1 - beta_t) f_start + beta_t f_end``, from ``beta_0 = 0`` to ``beta_T = 1``,
every chain starts at x_0 drawn from the start and has the weight::

    log w = sum_t (beta_t - beta_(t-1)) (f_end(x_(t-1)) - f_start(x_(t-1)))

where x_t comes from x_(t-1) by a step of Hamiltonian Monte Carlo that leaves ``exp(f_t)``
invariant. Then ``E[w] = Z_end / Z_start`` for chains of any length (Neal, 2001), so the log mean
is too low on average. Chains that run back from exact samples of the end estimate the inverse,
which gives a value that is too high on average: a bracket (Grosse et al., 2015).

Chains may belong to groups with different ends, for example the posteriors of many images.

Step sizes are adapted on pilots, separate chains that are dropped: weights of chains that adapt
their own step sizes would be biased. Step sizes vary at random by a quarter between chains, because
paths of a fixed length can be periodic. Cost: ``T num_leapfrog`` scores of both densities per
chain, T more with a limit of memory. On a GPU one transition is recorded as a CUDA graph and
replayed.

Paths may follow other forces than the scores. With deterministic forces a path still preserves
volume and leads back when the momentum is negated. It is accepted by the log-densities themselves,
which also give the weights, so moves leave ``exp(f_t)`` invariant and ``E[w]`` is the same (see
`ForcedTarget`). Forces far from the scores lower the acceptance: steps become smaller, and the
variance of the weights larger.

References: Neal (2001), Annealed importance sampling; Grosse, Ghahramani and Adams (2015),
Sandwiching the marginal likelihood with bidirectional Monte Carlo.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_generator, check_points
from scorematching._memory import limited
from scorematching._shapes import dimension
from scorematching.evaluation.estimate import Estimate
from scorematching.evaluation.log_z.chains import Chains
from scorematching.evaluation.log_z.schedule import make_betas, make_step_sizes
from scorematching.evaluation.log_z.weights import LogSums
from scorematching.types import LogDensity, Vector

Forces = tuple[Vector, Vector]
"""Deterministic vector fields for start and end, ``x: (N, *event) -> (N, *event)``."""


@dataclass(frozen=True, eq=False)
class Annealing:
    """The result of `ais`, for C chains in each of G groups.

    Attributes:
        log_weights: of every chain, ``(C, G)``, in double precision.
        x: final states of the chains, ``(C G, *event)``.
        betas: inverse temperatures, from 0 to 1, ``(T + 1,)``.
        step_sizes: of the moves at the temperatures between, ``(T - 1, G)``.
        acceptance: mean acceptance of those moves, ``(T - 1, G)``; one without moves.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> found = ais(normal, lambda x: normal(x) + 3.0, torch.randn(8, 2), num_steps=4,
        ...             step_size=0.5, num_groups=2)
        >>> found.log_weights.shape, [round(z, 4) for z in found.log_z.tolist()]
        (torch.Size([4, 2]), [3.0, 3.0])
    """

    log_weights: Tensor = field(repr=False)
    x: Tensor = field(repr=False)
    betas: Tensor = field(repr=False)
    step_sizes: Tensor = field(repr=False)
    acceptance: Tensor = field(repr=False)

    @cached_property
    def _sums(self) -> LogSums:
        return LogSums.of(self.log_weights)

    @property
    def log_z(self) -> Tensor:
        """Estimates of ``log Z_end - log Z_start``, ``(G,)``."""
        return self._sums.log_mean

    @property
    def standard_error(self) -> Tensor:
        """Of the estimates, by the delta method, ``(G,)``; unreliable at a small sample size."""
        return self._sums.standard_error

    @property
    def effective_sample_size(self) -> Tensor:
        """Number of equal weights with the same precision, ``(G,)``."""
        return self._sums.effective_sample_size


@dataclass(frozen=True, eq=False)
class Bracket:
    """A log normalising constant from both sides, for each of G groups.

    Attributes:
        lower: estimates from the forward chains, ``(G,)``; too low on average.
        upper: estimates from the reverse chains, ``(G,)``; too high on average.
        forward: the chains from start to end; None where samples take the place of chains.
        reverse: the chains from end to start, likewise.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> x = torch.randn(6, 2)
        >>> bracket = bidirectional(normal, lambda x: normal(x) + 1.0, x, x, x, num_steps=3)
        >>> round(bracket.lower.item(), 4), round(bracket.upper.item(), 4)
        (1.0, 1.0)
    """

    lower: Tensor
    upper: Tensor
    forward: Annealing | None = field(default=None, repr=False)
    reverse: Annealing | None = field(default=None, repr=False)

    @property
    def gap(self) -> Estimate:
        """Mean of ``upper - lower`` over the groups, with its standard error."""
        return Estimate.of(self.upper - self.lower)


def ais(
    start: LogDensity,
    end: LogDensity,
    x: Tensor,
    pilots: Tensor | None = None,
    num_steps: int = 1000,
    schedule: str | Tensor = "sigmoid",
    num_leapfrog: int = 10,
    step_size: float | Tensor | None = None,
    num_groups: int = 1,
    generator: torch.Generator | None = None,
    capture: bool = True,
    max_memory: int | None = None,
    forces: Forces | None = None,
) -> Annealing:
    """Log of the ratio ``Z_end / Z_start`` by annealed importance sampling, see the module.

    Args:
        start: log-density, ``(N, *event) -> (N,)``.
        end: log-density, ``(N, *event) -> (N,)``; its row i may depend on row i of its input only.
        x: exact samples of the start, ``(C G, *event)``; row ``c G + g`` is chain c of group g.
        pilots: the same for the pilots, ``(P G, *event)``; needed unless step sizes are given.
        num_steps: T, steps from start to end.
        schedule: "sigmoid" (denser near both ends) or "linear", or the betas themselves,
            ``(T + 1,)``, increasing from 0 to 1.
        num_leapfrog: leapfrog steps per move; 0 is importance sampling without moves.
        step_size: of the moves: a number, or ``(T - 1,)``, or ``(T - 1, G)``; None adapts them.
        num_groups: G, groups of chains with their own step sizes and estimates.
        generator: source of randomness; None is torch's default generator.
        capture: whether to record a CUDA graph, on a GPU.
        max_memory: bytes that may be taken beside densities and x; no graph is then recorded.
        forces: that paths follow in place of the scores of start and end, see the module.

    Raises:
        ValueError: a density returns NaN or plus infinity, or depends on other chains or the call.
        RuntimeError: a density cannot be recorded in a CUDA graph.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> wide = lambda x: -0.125 * (x - 1).square().sum(-1)  # Z is 4 times as large
        >>> x, pilots = torch.randn(200, 2, generator=g), torch.randn(20, 2, generator=g)
        >>> found = ais(normal, wide, x, pilots, num_steps=50, generator=g)
        >>> bool((found.log_z.exp() - 4).abs() < 1)
        True
    """
    _check_chains(x, num_groups, "x")
    check_generator(generator, x)
    betas = make_betas(schedule, num_steps)
    _check_moves(num_leapfrog, forces)
    moves = num_steps - 1 if num_leapfrog else 0
    pilots = _checked_pilots(pilots, x, num_groups) if step_size is None and moves else None
    guess = _first_step(x) if step_size is None else step_size
    sizes = make_step_sizes(guess, num_steps, num_groups)
    steps = betas if moves else betas[[0, -1]]  # without moves the increments add up to one
    with limited(max_memory, "take fewer chains") as budget:
        path = (steps, sizes, num_leapfrog, generator, budget, forces)
        chains = Chains(start, end, x, pilots, *path)
        chains.run(moves, capture and x.is_cuda and budget is None)
        return Annealing(*chains.result(), betas, chains.step_sizes[:-1], chains.acceptance)


def bidirectional(
    start: LogDensity,
    end: LogDensity,
    x: Tensor,
    exact: Tensor,
    pilots: Tensor,
    num_steps: int = 1000,
    schedule: str | Tensor = "sigmoid",
    num_leapfrog: int = 10,
    num_groups: int = 1,
    generator: torch.Generator | None = None,
    capture: bool = True,
    max_memory: int | None = None,
    forces: Forces | None = None,
) -> Bracket:
    """A log ratio of normalising constants from below and from above, see the module.

    Reverse chains have the step sizes of the forward ones. For the posterior of simulated data, the
    latents that the data were simulated from are exact samples.

    ``exact`` are exact samples of the end, in the order of x, ``(C' G, *event)``. Chains of a group
    may share one; the bound still holds, with a larger variance. Other arguments and errors are
    those of `ais`.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> narrow = lambda x: -2 * x.square().sum(-1)  # Z is 4 times as small
        >>> x, y, pilots = (torch.randn(300, 2, generator=g) for _ in range(3))
        >>> bracket = bidirectional(normal, narrow, x, y / 2, pilots, 40, generator=g)
        >>> bool((bracket.lower + 1.386).abs() < 0.1), bool((bracket.upper + 1.386).abs() < 0.1)
        (True, True)
    """
    _check_chains(exact, num_groups, "exact")
    rest = (num_groups, generator, capture, max_memory)
    forward = ais(start, end, x, pilots, num_steps, schedule, num_leapfrog, None, *rest, forces)
    back, sizes = 1 - forward.betas.flip(0), forward.step_sizes.flip(0)
    swapped = forces and forces[::-1]
    reverse = ais(end, start, exact, None, num_steps, back, num_leapfrog, sizes, *rest, swapped)
    return Bracket(forward.log_z, -reverse.log_z, forward, reverse)


def _check_chains(x: Any, num_groups: int, name: str) -> None:
    check_points(x, name)
    check_count(num_groups, "num_groups", "chains with the same end are one group")
    if len(x) % num_groups:
        raise ValueError(
            f"{name} must hold the same number of chains for each of {num_groups} groups, got "
            f"{len(x)} rows; row c * num_groups + g is chain c of group g"
        )


def _first_step(x: Tensor) -> float:
    """A step size for samples of the start, which pilots adapt from: in units of the samples.

    A power of two times ``D^(-1/4)``, so that it does not depend on every digit of the samples.
    """
    spread = x.detach().double().flatten(1).std(0, correction=0)
    least = spread[spread > 0].amin().item() if bool((spread > 0).any()) else 1.0
    return float(2.0 ** round(math.log2(least)) * dimension(x) ** -0.25)


def _check_moves(num_leapfrog: Any, forces: Any) -> None:
    if num_leapfrog != 0:
        check_count(num_leapfrog, "num_leapfrog", "or 0, for no moves")
    pair = isinstance(forces, tuple) and len(forces) == 2 and all(map(callable, forces))
    if forces is not None and not pair:
        raise TypeError(
            f"forces must be two callables (N, *event) -> (N, *event), for start and end, got "
            f"{forces!r}; for a density without a force of its own give its score"
        )


def _checked_pilots(pilots: Tensor | None, x: Tensor, num_groups: int) -> Tensor:
    if pilots is None:
        raise ValueError(
            "pilots must be given if step_size is None, got None; draw further samples of the "
            "start, a fifth as many as x, to adapt the step sizes"
        )
    _check_chains(pilots, num_groups, "pilots")
    if pilots.shape[1:] != x.shape[1:] or pilots.dtype != x.dtype:
        raise ValueError(
            f"pilots must be points like x, {tuple(x.shape[1:])} of {x.dtype}, got "
            f"{tuple(pilots.shape[1:])} of {pilots.dtype}; draw them as x was drawn"
        )
    return pilots

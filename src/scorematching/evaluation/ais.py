"""Annealed importance sampling between two log-densities: chains, weights and a bracket.

On the path ``f_t = (1 - beta_t) f_start + beta_t f_end``, from ``beta_0 = 0`` to ``beta_T = 1``,
every chain begins with x_0 from the start's law and collects::

    log w = sum_t (beta_t - beta_(t-1)) (f_end(x_(t-1)) - f_start(x_(t-1)))

where x_t comes from x_(t-1) by a step of Hamiltonian Monte Carlo that leaves ``exp(f_t)``
invariant. Then ``E[w] = Z_end / Z_start`` however short the chains (Neal, 2001), so the log mean
is too low on average. Chains that walk back from exact samples of the end estimate the inverse,
whose logarithm is too high: together they bracket the truth (Grosse et al., 2015).

Chains may belong to groups, each with an end of its own: the posteriors of many images, say.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count, check_generator, check_log_density, check_points
from scorematching._graphs import on_side_stream, record
from scorematching._shapes import dimension
from scorematching.evaluation.losses import Estimate
from scorematching.evaluation.schedule import make_betas, make_step_sizes
from scorematching.evaluation.weights import LogSums, check_log_weights
from scorematching.samplers import State, adapt_step_size, hmc, target_of
from scorematching.samplers.base import uniform_rows
from scorematching.types import LogDensity

_WARM_UP = 20
_EAGER = 3


@dataclass(frozen=True, eq=False)
class Annealing:
    """What annealed importance sampling found, for C chains in each of G groups.

    Attributes:
        log_weights: of every chain, ``(C, G)``, in double precision.
        x: where the chains end, ``(C G, *event)``.
        betas: inverse temperatures, from 0 to 1, ``(T + 1,)``.
        step_sizes: of the moves at the temperatures between, ``(T - 1, G)``.
        acceptance: mean acceptance of those moves, ``(T - 1, G)``; one where nothing moves.

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
        """Of the estimates, by the delta method, ``(G,)``; believe it where the next is large."""
        return self._sums.standard_error

    @property
    def effective_sample_size(self) -> Tensor:
        """Number of equal weights that would be as good, ``(G,)``."""
        return self._sums.effective_sample_size


@dataclass(frozen=True, eq=False)
class Bracket:
    """A log normalising constant from both sides, for each of G groups.

    Attributes:
        lower: estimates from chains that walked forward, ``(G,)``; too low on average.
        upper: estimates from chains that walked back, ``(G,)``; too high on average.
        forward: the chains from start to end.
        reverse: the chains from end to start.

    Example:
        >>> normal = lambda x: -0.5 * x.square().sum(-1)
        >>> x = torch.randn(6, 2)
        >>> bracket = bidirectional(normal, lambda x: normal(x) + 1.0, x, x, x, num_steps=3)
        >>> round(bracket.lower.item(), 4), round(bracket.upper.item(), 4)
        (1.0, 1.0)
    """

    lower: Tensor
    upper: Tensor
    forward: Annealing = field(repr=False)
    reverse: Annealing = field(repr=False)

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
) -> Annealing:
    """Log of the ratio ``Z_end / Z_start`` by annealed importance sampling, see the module.

    Step sizes are found on the pilots, chains of their own that walk along and are dropped: chains
    that adapted themselves would no longer be unbiased. They vary at random by a quarter from
    chain to chain, lest paths of one length ring. Cost: ``T (num_leapfrog + 1)`` scores of both
    densities per chain. On a GPU one transition is recorded as a CUDA graph and replayed; matrix
    products in tf32 are twice as fast where the caller allows them.

    Args:
        start: log-density, ``(N, *event) -> (N,)``.
        end: log-density, ``(N, *event) -> (N,)``; its row i may depend on row i of its input only.
        x: exact samples of the start, ``(C G, *event)``; row ``c G + g`` is chain c of group g.
        pilots: the same for the pilots, ``(P G, *event)``; needed unless step sizes are given.
        num_steps: T, steps from start to end.
        schedule: "sigmoid" (denser near both ends) or "linear", or the betas themselves,
            ``(T + 1,)``, increasing from 0 to 1.
        num_leapfrog: leapfrog steps per move; with 0 nothing moves, and this is importance
            sampling.
        step_size: of the moves: a number, or ``(T - 1,)``, or ``(T - 1, G)``; None finds them.
        num_groups: G, groups of chains; each has its own step sizes and its own estimate.
        generator: source of randomness; None is torch's default generator.
        capture: whether to record a CUDA graph, on a GPU.

    Returns:
        Log-weights, estimates with standard errors, and how the moves went.

    Raises:
        ValueError: an argument is out of range, or a density returns NaN or plus infinity.
        RuntimeError: a density cannot be recorded in a CUDA graph.

    Reference: Neal (2001), Annealed importance sampling.

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
    if num_leapfrog != 0:
        check_count(num_leapfrog, "num_leapfrog", "or 0, for no moves")
    moves = num_steps - 1 if num_leapfrog else 0
    adapts = step_size is None and moves > 0
    if adapts:
        _check_pilots(pilots, x, num_groups)
    guess = dimension(x) ** -0.25 if step_size is None else step_size
    sizes = make_step_sizes(guess, num_steps, num_groups)
    # Without moves the increments telescope, whatever the temperatures.
    steps = betas if moves else betas[[0, -1]]
    chains = (x, pilots if adapts else None)
    walk = _Walk(start, end, *chains, steps, sizes, num_leapfrog, generator)
    walk.run(moves, capture and x.is_cuda)
    return walk.result(betas)


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
) -> Bracket:
    """A log ratio of normalising constants from below and from above.

    Forward chains give a log mean that is too low on average. Chains that begin with exact
    samples of the end and walk back, with the step sizes that the way forward found, give the
    inverse, and so one that is too high. Exact samples come for free where the end is a posterior
    of simulated data: the latents that the data were simulated from.

    Args:
        start: log-density, ``(N, *event) -> (N,)``.
        end: log-density, ``(N, *event) -> (N,)``.
        x: exact samples of the start, ``(C G, *event)``; row ``c G + g`` is chain c of group g.
        exact: exact samples of the end, in the same order, ``(C' G, *event)``. Chains of a group
            may share one: the bound still holds, with more spread.
        pilots: further samples of the start, ``(P G, *event)``, see `ais`.
        num_steps: T, steps from start to end.
        schedule: as for `ais`.
        num_leapfrog: leapfrog steps per move.
        num_groups: G, groups of chains.
        generator: source of randomness; None is torch's default generator.
        capture: whether to record a CUDA graph, on a GPU.

    Returns:
        Both bounds for every group, and their gap.

    Raises:
        ValueError: an argument is out of range, or a density returns NaN or plus infinity.

    Reference: Grosse, Ghahramani and Adams (2015), Sandwiching the marginal likelihood with
    bidirectional Monte Carlo.

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
    walk = functools.partial(
        ais,
        num_steps=num_steps,
        num_leapfrog=num_leapfrog,
        num_groups=num_groups,
        generator=generator,
        capture=capture,
    )
    forward = walk(start, end, x, pilots, schedule=schedule)
    back, sizes = 1 - forward.betas.flip(0), forward.step_sizes.flip(0)
    reverse = walk(end, start, exact, schedule=back, step_size=sizes)
    return Bracket(forward.log_z, -reverse.log_z, forward, reverse)


class _Walk:
    """Chains on their way, with everything that one transition reads and writes.

    A transition works in place on the same tensors each time, and knows where in the schedule it
    is by a counter on the device: so it can be recorded once and replayed, and nothing waits for
    a number to come back.
    """

    def __init__(
        self,
        start: LogDensity,
        end: LogDensity,
        x: Tensor,
        pilots: Tensor | None,
        betas: Tensor,
        step_sizes: Tensor,
        num_leapfrog: int,
        generator: torch.Generator | None,
    ) -> None:
        """Lay out the tensors; pilots come after the chains that count."""
        self.densities, self.targets = (start, end), (target_of(start), target_of(end))
        self.num_leapfrog, self.generator = num_leapfrog, generator
        self.rows, self.groups = len(x), step_sizes.shape[1]
        self.adapts = pilots is not None
        self.x = x.detach().clone() if pilots is None else torch.cat([x, pilots]).detach()
        self.betas = betas.to(x.device)
        self.log_weights = torch.zeros(len(self.x), dtype=torch.float64, device=x.device)
        # A row to spare, for the step size that the last move proposes.
        self.step_sizes = torch.cat([step_sizes, step_sizes[:1]]).to(x)
        self.acceptance = torch.ones(len(step_sizes), self.groups).to(x)
        self.position = torch.zeros(1, dtype=torch.int64, device=x.device)

    def run(self, moves: int, capture: bool) -> None:
        """Walk from start to end."""
        with torch.no_grad():
            if self.adapts:
                self.warm_up()
            if capture and moves > 2 * _EAGER:
                self.replay(moves)
            else:
                for _ in range(moves):
                    self.transition()
            start, end = (_values(density, self.x) for density in self.densities)
            self.weigh(start, end)

    def result(self, betas: Tensor) -> Annealing:
        """What the chains that count have found."""
        log_weights = self.log_weights[: self.rows].reshape(-1, self.groups)
        check_log_weights(log_weights)
        sizes = self.step_sizes[:-1]
        return Annealing(log_weights, self.x[: self.rows], betas, sizes, self.acceptance)

    def warm_up(self) -> None:
        """First step sizes, from moves of the pilots that leave the start invariant."""
        target, x = self.targets[0], self.x[self.rows :]
        state, sizes = hmc.start(target, x), self.step_sizes[0]
        for _ in range(_WARM_UP):
            shared = sizes.repeat(len(x) // self.groups)
            state, info = hmc.step(state, target, shared, self.num_leapfrog, self.generator)
            sizes = self.adapted(sizes, info.acceptance)
        self.x[self.rows :] = state.x
        self.step_sizes[0] = sizes

    def transition(self) -> None:
        """One increment of the weights, and one move at the next temperature."""
        (f0, s0), (f1, s1) = (target(self.x) for target in self.targets)
        beta = self.weigh(f0, f1).to(self.x)
        state = State(self.x, torch.lerp(f0, f1, beta), torch.lerp(s0, s1, beta))
        sizes = self.step_sizes.index_select(0, self.position)
        noise = hmc.draw(self.x, self.generator)
        state, info = hmc.move(
            state, self.between(beta), noise, self.jittered(sizes), self.num_leapfrog
        )
        self.x.copy_(state.x)
        mean = info.acceptance[: self.rows].reshape(-1, self.groups).mean(0, keepdim=True)
        self.acceptance.index_copy_(0, self.position, mean)
        if self.adapts:
            proposed = self.adapted(sizes, info.acceptance[self.rows :])
            self.step_sizes.index_copy_(0, self.position + 1, proposed)
        self.position += 1

    def weigh(self, start: Tensor, end: Tensor) -> Tensor:
        """Add the next increment to the weights; returns the inverse temperature, ``(1,)``."""
        before = self.betas.index_select(0, self.position)
        beta = self.betas.index_select(0, self.position + 1)
        self.log_weights += (beta - before) * (end.double() - start.double())
        return beta

    def between(self, beta: Tensor) -> hmc.Target:
        """The target at an inverse temperature."""

        def target(x: Tensor) -> tuple[Tensor, Tensor]:
            (f0, s0), (f1, s1) = (end(x) for end in self.targets)
            return torch.lerp(f0, f1, beta), torch.lerp(s0, s1, beta)

        return target

    def jittered(self, sizes: Tensor) -> Tensor:
        """A step size for every chain, ``(1, G) -> (rows,)``."""
        u = uniform_rows(self.x, self.generator).reshape(-1, self.groups)
        return (sizes * (0.75 + 0.5 * u)).flatten()

    def adapted(self, sizes: Tensor, acceptance: Tensor) -> Tensor:
        """Step sizes ``(..., G)`` after moves of the pilots with acceptances ``(P G,)``."""
        proposed = adapt_step_size(sizes, acceptance.reshape(-1, self.groups).mean(0))
        assert isinstance(proposed, Tensor)
        return proposed

    def replay(self, moves: int) -> None:
        """Transitions as one CUDA graph, after a few that run eagerly."""
        for _ in range(_EAGER):
            on_side_stream(self.transition, self.x.device)
        names = "these log-densities", "pass capture=False"
        graph, _ = record(self.transition, self.x.device, self.generator, *names)
        for _ in range(moves - _EAGER):
            graph.replay()
        # The graph owns the memory it works in: it must not go before its work is done.
        torch.cuda.synchronize(self.x.device)


def _values(log_density: LogDensity, x: Tensor) -> Tensor:
    values = log_density(x)
    check_log_density(values, x, feature_axes=0)
    return values


def _check_chains(x: Any, num_groups: int, name: str) -> None:
    check_points(x, name)
    check_count(num_groups, "num_groups", "chains with one end in common are one group")
    if len(x) % num_groups:
        raise ValueError(
            f"{name} must hold the same number of chains for each of {num_groups} groups, got "
            f"{len(x)} rows; row c * num_groups + g is chain c of group g"
        )


def _check_pilots(pilots: Tensor | None, x: Tensor, num_groups: int) -> None:
    if pilots is None:
        raise ValueError(
            "pilots must be given where step_size is None, got None; draw some more samples of "
            "the start, a fifth as many as x, to find step sizes with"
        )
    _check_chains(pilots, num_groups, "pilots")
    if pilots.shape[1:] != x.shape[1:] or pilots.dtype != x.dtype:
        raise ValueError(
            f"pilots must be points like x, {tuple(x.shape[1:])} of {x.dtype}, got "
            f"{tuple(pilots.shape[1:])} of {pilots.dtype}; draw them as x was drawn"
        )

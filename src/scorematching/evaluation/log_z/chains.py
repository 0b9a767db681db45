"""Chains of annealed importance sampling: weights, moves and the adaptation of step sizes."""

from collections.abc import Callable

import torch
from torch import Tensor

from scorematching._graphs import on_side_stream, record
from scorematching._memory import Budget, Chunks, joined
from scorematching._random import uniform
from scorematching.derivatives.repeats import check_repeats
from scorematching.evaluation.log_z.weights import check_log_weights, log_densities
from scorematching.samplers import ForcedTarget, State, Target, adapt_step_size, hmc, target_of
from scorematching.samplers.base import per_chain
from scorematching.types import LogDensity, Vector

_WARM_UP = 20
_EAGER = 3
_ALL = 2**40

_Ends = tuple[list[Tensor], list[Tensor]]
"""Values and scores of two densities."""


class Chains:
    """The chains of annealed importance sampling, with all tensors that a transition uses.

    A transition updates the same tensors in place each time, and reads its position in the schedule
    from a counter on the device, so that it can be recorded as a CUDA graph and replayed. Values
    and scores of both densities do not depend on the temperature, so those at the end of a path are
    kept for the next transition, unless there is a budget of memory.
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
        budget: Budget | None = None,
        forces: tuple[Vector, Vector] | None = None,
    ) -> None:
        """Allocate the tensors; rows of the pilots follow those of x.

        With a budget of memory, densities and scores are evaluated for some chains at a time.
        """
        parts = _Parts(step_sizes.shape[1], budget)
        self.densities = parts.density(start), parts.density(end)
        first, last = forces or (None, None)
        self.targets = parts.target(start, first), parts.target(end, last)
        self.num_leapfrog, self.generator = num_leapfrog, generator
        self.rows, self.groups = len(x), step_sizes.shape[1]
        self.adapts = pilots is not None
        self.x = x.detach().clone() if pilots is None else torch.cat([x, pilots]).detach()
        self.betas = betas.to(x.device)
        self.log_weights = torch.zeros(len(self.x), dtype=torch.float64, device=x.device)
        # One more row, for the step size that is adapted after the last move.
        self.step_sizes = torch.cat([step_sizes, step_sizes[:1]]).to(x)
        self.acceptance = torch.ones(len(step_sizes), self.groups).to(x)
        self.position = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.keeps = budget is None
        self.kept: _Ends | None = None

    def run(self, moves: int, capture: bool) -> None:
        """Run all transitions from start to end."""
        check_repeats(self.densities[1], self.x[: self.rows], self.groups)
        with torch.no_grad():
            if self.adapts:
                self.warm_up()
            if moves and self.keeps:
                values, scores = self.ends()
                self.kept = [f.clone() for f in values], [s.clone() for s in scores]
            if capture and moves > 2 * _EAGER:
                self.replay(moves)
            else:
                for _ in range(moves):
                    self.transition()
            start, end = (log_densities(density, self.x) for density in self.densities)
            self.add_increment(start, end)

    def result(self) -> tuple[Tensor, Tensor]:
        """Log-weights ``(C, G)`` and final states ``(C G, *event)``, without the pilots."""
        log_weights = self.log_weights[: self.rows].reshape(-1, self.groups)
        check_log_weights(log_weights)
        return log_weights, self.x[: self.rows]

    def warm_up(self) -> None:
        """Adapt the first step sizes by moves of the pilots that leave the start invariant."""
        target, x = self.targets[0], self.x[self.rows :]
        state, sizes = hmc.start(target, x), self.step_sizes[0]
        for _ in range(_WARM_UP):
            shared = sizes.repeat(len(x) // self.groups)
            state, info = hmc.step(state, target, shared, self.num_leapfrog, self.generator)
            sizes = self.adapted(sizes, info.acceptance)
        self.x[self.rows :] = state.x
        self.step_sizes[0] = sizes

    def ends(self) -> _Ends:
        """Values and scores, or forces, of both densities where the chains are."""
        (f0, s0), (f1, s1) = (target(self.x) for target in self.targets)
        return [f0, f1], [s0, s1]

    def transition(self) -> None:
        """Add an increment to the weights, and move at the next temperature."""
        (f0, f1), (s0, s1) = self.kept or self.ends()
        beta = self.add_increment(f0, f1).to(self.x)
        path = _Path(self.targets, beta, self.keeps)
        state = State(self.x, torch.lerp(f0, f1, beta), torch.lerp(s0, s1, beta))
        sizes = self.step_sizes.index_select(0, self.position)
        noise = hmc.draw(self.x, self.generator)
        varied = self.varied(sizes)
        state, info = hmc.move(state, path.target, noise, varied, self.num_leapfrog)
        self.x.copy_(state.x)
        if self.kept is not None:
            for old, new in zip((f0, f1, s0, s1), (*path.values, *path.scores)):
                torch.where(per_chain(info.accepted, old), new, old, out=old)
        mean = info.acceptance[: self.rows].reshape(-1, self.groups).mean(0, keepdim=True)
        self.acceptance.index_copy_(0, self.position, mean)
        if self.adapts:
            proposed = self.adapted(sizes, info.acceptance[self.rows :])
            self.step_sizes.index_copy_(0, self.position + 1, proposed)
        self.position += 1

    def add_increment(self, start: Tensor, end: Tensor) -> Tensor:
        """Add the next increment to the weights; returns the next inverse temperature, ``(1,)``."""
        before = self.betas.index_select(0, self.position)
        beta = self.betas.index_select(0, self.position + 1)
        self.log_weights += (beta - before) * (end.double() - start.double())
        return beta

    def varied(self, sizes: Tensor) -> Tensor:
        """A step size for every chain, varied at random by a quarter: ``(1, G) -> (rows,)``."""
        u = uniform(self.x.shape[:1], self.x, self.generator).reshape(-1, self.groups)
        return (sizes * (0.75 + 0.5 * u)).flatten()

    def adapted(self, sizes: Tensor, acceptance: Tensor) -> Tensor:
        """Step sizes ``(..., G)`` after moves of the pilots with acceptances ``(P G,)``."""
        proposed = adapt_step_size(sizes, acceptance.reshape(-1, self.groups).mean(0))
        assert isinstance(proposed, Tensor)
        return proposed

    def replay(self, moves: int) -> None:
        """Run a few transitions eagerly, then replay one as a CUDA graph."""
        for _ in range(_EAGER):
            on_side_stream(self.transition, self.x.device)
        names = "these log-densities", "pass capture=False"
        graph, _ = record(self.transition, self.x.device, self.generator, *names)
        for _ in range(moves - _EAGER):
            graph.replay()
        # The graph owns its memory, so it must not be freed before its work is done.
        torch.cuda.synchronize(self.x.device)


class _Path:
    """A path between two densities at an inverse temperature ``(1,)``.

    Attributes:
        target: what a path of Hamiltonian dynamics needs.
        values: both log-densities where they were last evaluated, each ``(rows,)``, if kept.
        scores: both scores, or forces, where they were last evaluated, ``(rows, *event)``, if kept.
    """

    def __init__(self, targets: tuple[Target, Target], beta: Tensor, keeps: bool) -> None:
        self.targets, self.beta, self.keeps = targets, beta, keeps
        self.values: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.forced = [target for target in targets if isinstance(target, ForcedTarget)]
        self.target: Target = ForcedTarget(self._value, self._force) if self.forced else self._both

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (f0, s0), (f1, s1) = (target(x) for target in self.targets)
        return self._mixed(self.values, f0, f1), self._mixed(self.scores, s0, s1)

    def _value(self, x: Tensor) -> Tensor:
        return self._mixed(self.values, *(target.log_density(x) for target in self.forced))

    def _force(self, x: Tensor) -> Tensor:
        return self._mixed(self.scores, *(target.force_at(x) for target in self.forced))

    def _mixed(self, kept: list[Tensor], start: Tensor, end: Tensor) -> Tensor:
        if self.keeps:
            kept[:] = start, end
        return torch.lerp(start, end, self.beta)


class _Parts:
    """Evaluates functions of chains in a budget of memory, for some chains of all groups at a time.

    Row ``c G + g`` is chain c of group g. Without a budget all chains are evaluated at once.
    """

    def __init__(self, groups: int, budget: Budget | None) -> None:
        self.groups, self.budget = groups, budget

    def density(self, density: LogDensity) -> LogDensity:
        """A log-density, ``(C G, *event) -> (C G,)``, or a force, ``-> (C G, *event)``."""
        if self.budget is None:
            return density
        chunks = Chunks(_ALL, self.budget)
        return lambda x: self._joined(chunks, density, x)

    def target(self, density: LogDensity, force: Vector | None) -> Target:
        """The target of a log-density, with its score or a force."""
        if force is not None:
            return ForcedTarget(self.density(density), self.density(force))
        target = target_of(density)
        if self.budget is None:
            return target
        chunks = Chunks(_ALL, self.budget)

        def both(x: Tensor) -> Tensor:
            value, score = target(x)
            return torch.cat([value[:, None], score.flatten(1)], 1)

        def in_parts(x: Tensor) -> tuple[Tensor, Tensor]:
            found = self._joined(chunks, both, x)
            return found[:, 0], found[:, 1:].reshape(x.shape)

        return in_parts

    def _joined(self, chunks: Chunks, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        def of_chains(part: Tensor) -> Tensor:
            return function(part.flatten(0, 1)).unflatten(0, (-1, self.groups))

        return joined(chunks, of_chains, [x.unflatten(0, (-1, self.groups))]).flatten(0, 1)

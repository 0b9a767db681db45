"""A batch shared among processes, and evaluated in parts.

All processes have the same batch and draw the same noise for all of its points, from generators in
the same state. Each then takes every so-manyth point with its noise. So points, noise and the mean
loss do not depend on the number of processes or parts.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

from scorematching.training.data import Batches, count_points, take_rows
from scorematching.training.losses import LossModule, require_losses
from scorematching.training.parallel import Parallel
from scorematching.training.step import Gradients


class SharedGradients(Gradients):
    """The gradients of the mean loss of a batch, of which each process evaluates its own points.

    A process evaluates them in ``accumulate`` parts, one after the other, and adds up their
    gradients, which takes less memory. Gradients are averaged over processes after the last part.

    A function in place of an `Objective`, and `CurvaturePropagation`, draw while they run. They get
    a generator for each part of each batch, which follows from the run's own. So their noise
    depends on the number of parts, though not on anything else.
    """

    def __init__(self, losses: LossModule, parallel: Parallel, batches: Batches) -> None:
        super().__init__(losses)
        self.module, self.parallel, self.batches = losses, parallel, batches
        self.ranks, self.parts = batches.ranks, batches.config.accumulate

    def __call__(self, batch: Any, phase: int) -> Tensor:
        """Set ``.grad`` of the parameters; returns a loss whose mean over processes is the mean."""
        points, count = count_points(batch), self.ranks.count
        shares = count * self.parts
        if points < shares:
            raise ValueError(
                f"a batch must have a point for each of the {shares} shares (processes times "
                f"accumulate), got {points}; use larger batches, or drop_last=True"
            )
        noise, total = self.module.draw(batch, phase), []
        for part in range(self.parts):
            number = self.ranks.rank + count * part
            source, rows = self._source(noise, phase, number), slice(number, None, shares)
            shared = self.module.share(noise, batch, rows, phase)
            with self.parallel.backward_pass(last=part == self.parts - 1):
                mine = take_rows(batch, rows, points)
                losses = self.parallel.losses(mine, phase, shared, source)
                require_losses(losses, count_points(mine))
                loss = losses.sum() * (count / points)
                loss.backward()
            total.append(loss.detach())
        return torch.stack(total).sum()

    def _source(self, noise: Any, phase: int, number: int) -> torch.Generator | None:
        """The generator of a share; None where all noise is drawn already."""
        generator = self.module.generator
        if generator is None or not self.module.draws_while_running(noise, phase):
            return None
        return derived(generator, self.batches.epoch, self.batches.position, phase, number)


def derived(generator: torch.Generator, *numbers: int) -> torch.Generator:
    """A generator that follows from the state of another one and from numbers.

    Example:
        >>> a, b = (derived(torch.Generator().manual_seed(0), i) for i in (0, 1))
        >>> a.initial_seed() == b.initial_seed()
        False
    """
    state = generator.get_state().numpy().tobytes() + repr(numbers).encode()
    seed = int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little") >> 1
    return torch.Generator(generator.device).manual_seed(seed)

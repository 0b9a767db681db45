"""Seeds for packages that take no torch generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed drawn from a generator."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**31 - 1, (), generator=generator, device=device))


@contextmanager
def seeded(generator: torch.Generator | None) -> Iterator[None]:
    """Random numbers of torch's default generator depend on ``generator`` inside the block.

    For code that draws from the default generator; its state is restored afterwards.
    """
    seed = draw_seed(generator)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(torch.Generator().manual_seed(seed).get_state())
        yield

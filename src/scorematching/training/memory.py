"""What to do when memory runs out: halve the number of points at a time, or say what to change."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from scorematching.training.data import count_points

logger = logging.getLogger("scorematching.training")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was no memory left, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


@contextlib.contextmanager
def advising(batch: Any) -> Iterator[None]:
    """Say what to change, if memory runs out in a step.

    Raises:
        MemoryError: instead of the many kinds of errors that torch has for this.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MemoryError(
            f"a step on {count_points(batch)} points must fit into memory, got: {reason}; take a "
            'smaller batch_size, or evaluate it in parts by accumulate=, or use precision="bf16" '
            "on a GPU"
        ) from error


class Parts:
    """A function of points evaluated by parts, smaller ones after memory has run out.

    Args:
        function: ``(N, *event) -> (N,)``.
        generator: of its random numbers; where a part is too large, everything is evaluated again
            from the state of the generator at the beginning.
        size: of the parts at first.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], generator: torch.Generator, size: int
    ) -> None:
        self.function, self.generator, self.size = function, generator, size

    def __call__(self, x: Tensor) -> Tensor:
        """The function of all points, ``(N, *event) -> (N,)``.

        Raises:
            MemoryError: if a single point is too much.
        """
        start = self.generator.get_state()
        while True:
            try:
                return torch.cat([self.function(part) for part in x.split(self.size)])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                size = min(self.size, len(x))
                if size == 1:
                    raise MemoryError(
                        f"one point must fit into memory, got: {error}; take a smaller model"
                    ) from error
                self.size = size // 2
                logger.warning("out of memory with %d points at a time: trying %d", size, self.size)
            self.generator.set_state(start)

"""Batches, epoch after epoch, from wherever a run was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points
from scorematching.training.config import TrainConfig
from scorematching.training.distributed import Ranks

Transform = Callable[[Any, torch.Generator], Any]
"""What makes a batch of points of a batch of data, with noise that is new each time."""


class Batches:
    """An endless stream of batches that knows where it is.

    A tensor ``(N, *event)`` is shuffled anew in every epoch and cut into batches; of a batch,
    each process takes its share. Any other iterable gives batches itself, and each process its
    own; it is started again for every epoch.

    Args:
        data: the tensor, or an iterable of batches.
        config: says how large batches are.
        ranks: the processes that share them.
        generator: shuffles, and is handed to ``transform``.
        transform: applied to every batch, ``(batch, generator) -> batch``.

    Attributes:
        epoch: number of epochs completed.
        position: number of batches taken in this one.
        start: state of the generator when it began.

    Raises:
        TypeError: if data is neither.
        ValueError: if there are too few points for one batch, or batches cannot be shared.
    """

    def __init__(
        self,
        data: Tensor | Iterable[Any],
        config: TrainConfig,
        ranks: Ranks,
        generator: torch.Generator,
        transform: Transform | None,
    ) -> None:
        """Check the data; nothing is drawn yet."""
        self.data, self.config, self.ranks = data, config, ranks
        self.generator, self.transform = generator, transform
        self.epoch, self.position, self.start = 0, 0, generator.get_state()
        if isinstance(data, Tensor):
            _check_tensor(data, config, ranks, transform)
        elif not isinstance(data, Iterable):
            raise TypeError(
                f"data must be a tensor or an iterable of batches, got {type(data).__name__}; "
                "convert it with torch.as_tensor"
            )

    def per_epoch(self) -> int | None:
        """Batches in an epoch; None where that is not known beforehand."""
        if not isinstance(self.data, Tensor):
            return len(self.data) if isinstance(self.data, Sized) else None
        full, rest = divmod(len(self.data), self.config.batch_size)
        return full if self.config.drop_last else full + (rest > 0)

    def __iter__(self) -> Iterator[Any]:
        """Batches without end, beginning after those already taken."""
        while True:
            for rows in self._open():
                self.position += 1
                yield self._prepare(rows)
            if self.position == 0:
                raise ValueError(
                    f"data must give batches in every epoch, got none in epoch {self.epoch}; pass "
                    "something that can be iterated again, such as a list or a DataLoader"
                )
            self.epoch, self.position = self.epoch + 1, 0

    def _open(self) -> Iterator[Any]:
        """The rest of the present epoch."""
        if self.position == 0:
            self.start = self.generator.get_state()
            return self._rows()
        # An epoch in its middle: begin it as it once began, then go on with today's noise.
        now = self.generator.get_state()
        self.generator.set_state(self.start)
        rows = self._rows()
        for _ in islice(rows, self.position):
            continue
        self.generator.set_state(now)
        return rows

    def _rows(self) -> Iterator[Any]:
        """Row numbers of this process, batch by batch; or the batches of an iterable."""
        if not isinstance(self.data, Tensor):
            return iter(self.data)
        count, size = len(self.data), self.config.batch_size
        order = torch.randperm(count, generator=self.generator, device=self.generator.device)
        order = self.ranks.from_main(order)
        used = count - count % size if self.config.drop_last else count
        batches = order[:used].to(self.data.device).split(size)
        return iter([rows[self.ranks.rank :: self.ranks.count] for rows in batches])

    def _prepare(self, rows: Any) -> Any:
        batch = to_device(
            self.data[rows] if isinstance(self.data, Tensor) else rows, self.ranks.device
        )
        return batch if self.transform is None else self.transform(batch, self.generator)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch on the device: a tensor, or tensors in tuples, lists and dictionaries."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def count_points(batch: Any) -> int:
    """Points in a batch: rows of its first tensor."""
    while not isinstance(batch, Tensor):
        if isinstance(batch, dict):
            batch = list(batch.values())
        if not isinstance(batch, tuple | list) or not batch:
            return 1
        batch = batch[0]
    return len(batch)


def _check_tensor(
    data: Tensor, config: TrainConfig, ranks: Ranks, transform: Transform | None
) -> None:
    if transform is None:
        check_points(data, "data")
    if config.drop_last and len(data) < config.batch_size:
        raise ValueError(
            f"batch_size must be at most the number of points, {len(data)}, got "
            f"{config.batch_size}; take smaller batches, or set drop_last=False"
        )
    if ranks.count > 1 and not (config.drop_last and config.batch_size % ranks.count == 0):
        raise ValueError(
            f"batch_size must be a multiple of the number of processes, {ranks.count}, with "
            f"drop_last=True, got {config.batch_size} with drop_last={config.drop_last}; unequal "
            "shares would weigh points unequally"
        )

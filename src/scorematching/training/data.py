"""Batches, epoch after epoch, from where a run was interrupted."""

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points
from scorematching.training.config import TrainConfig
from scorematching.training.ranks import Ranks

Transform = Callable[[Any, torch.Generator], Any]
"""Makes points of a batch of data, ``(batch, generator) -> batch``, with new noise each time."""


class Batches:
    """An endless stream of batches that knows its position.

    A tensor ``(N, *event)`` is shuffled anew in every epoch and cut into batches, which processes
    share. Any other iterable yields batches itself, for each process its own, and is iterated
    again in every epoch. A tensor is moved to the device, if it takes at most a quarter of the
    free memory there.

    The generator is for shuffling and for ``transform``, which is applied to every batch.

    Attributes:
        epoch: number of epochs completed.
        position: number of batches drawn in this one.
        start: state of the generator at its beginning.

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
        self.data = on_device(data, ranks.device) if isinstance(data, Tensor) else data
        self.config, self.ranks = config, ranks
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
        """Batches in an epoch; None if unknown."""
        if not isinstance(self.data, Tensor):
            return len(self.data) if isinstance(self.data, Sized) else None
        full, rest = divmod(len(self.data), self.config.batch_size)
        return full if self.config.drop_last else full + (rest > 0)

    def __iter__(self) -> Iterator[Any]:
        """Endless batches, beginning after those already drawn."""
        while True:
            for rows in self._open():
                self.position += 1
                yield self.prepare(self.data[rows] if isinstance(self.data, Tensor) else rows)
            if self.position == 0:
                raise ValueError(
                    f"data must give batches in every epoch, got none in epoch {self.epoch}; pass "
                    "something that can be iterated again, such as a list or a DataLoader"
                )
            self.epoch, self.position = self.epoch + 1, 0

    def _open(self) -> Iterator[Any]:
        """The rest of the current epoch."""
        if self.position == 0:
            self.start = self.generator.get_state()
            return self._rows()
        # In the middle of an epoch: shuffle as at its beginning, then restore the generator.
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

    def prepare(self, batch: Any) -> Any:
        """A batch on the device, transformed."""
        batch = to_device(batch, self.ranks.device)
        return batch if self.transform is None else self.transform(batch, self.generator)


def on_device(data: Tensor, device: torch.device) -> Tensor:
    """A tensor on a GPU, if it takes at most a quarter of the free memory; else as it is."""
    if device.type != "cuda" or data.is_cuda:
        return data
    free, _ = torch.cuda.mem_get_info(device)
    return data.to(device) if 4 * data.nbytes <= free else data


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

"""Batches, epoch after epoch, from where a run was interrupted."""

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points, check_type
from scorematching.training.config import TrainConfig
from scorematching.training.ranks import Ranks
from scorematching.training.streams import Stream

Transform = Callable[[Any, torch.Generator], Any]
"""Makes points of a batch of data, ``(batch, generator) -> batch``, with new noise each time."""


class Batches:
    """An endless stream of batches that knows its position.

    A tensor ``(N, *event)``, or a `Stream`, is shuffled anew in every epoch and cut into batches.
    Any other iterable yields batches itself, the same ones in every process, and is iterated again
    in every epoch. A tensor is moved to the device, if it takes at most a quarter of the free
    memory there.

    Batches are those of all processes together; each takes its points from them later.

    The generator is for shuffling and for ``transform``, which is applied to every batch.

    Attributes:
        epoch: number of epochs completed.
        position: number of batches drawn in this one.
        start: state of the generator at its beginning.
    """

    def __init__(
        self,
        data: Tensor | Stream | Iterable[Any],
        config: TrainConfig,
        ranks: Ranks,
        generator: torch.Generator,
        transform: Transform | None,
    ) -> None:
        self.data = on_device(data, ranks.device) if isinstance(data, Tensor) else data
        self.config, self.ranks = config, ranks
        self.generator, self.transform = generator, transform
        self.epoch, self.position, self.start = 0, 0, generator.get_state()
        self.compared = -1
        if isinstance(data, Tensor) and transform is None:
            check_points(data, "data")
        if isinstance(data, Tensor | Stream):
            _check_share(len(data), config, ranks)
        else:
            wanted = "data must be a tensor, a stream or an iterable of batches"
            check_type(data, Iterable, wanted, "convert it with torch.as_tensor")

    def per_epoch(self) -> int | None:
        """Batches in an epoch; None if unknown."""
        if not isinstance(self.data, Tensor | Stream):
            return len(self.data) if isinstance(self.data, Sized) else None
        full, rest = divmod(len(self.data), self.config.batch_size)
        return full if self.config.drop_last else full + (rest > 0)

    def __iter__(self) -> Iterator[Any]:
        """Endless batches, beginning after those already drawn."""
        while True:
            for rows in self._open():
                self.position += 1
                batch = self.data[rows] if isinstance(self.data, Tensor) else rows
                self._compare(batch)
                yield self.prepare(batch)
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
        rows = self._rows(self.position)
        self.generator.set_state(now)
        return rows

    def _compare(self, batch: Any) -> None:
        """Require the same batch in all processes, once in every epoch.

        Raises:
            ValueError: if they differ.
        """
        if self.ranks.count == 1 or self.compared == self.epoch:
            return
        self.compared = self.epoch
        sums: list[Tensor] = []
        map_tensors(lambda x: sums.append(x.detach().double().sum().cpu()), batch)
        if sums and len(self.ranks.gather(torch.stack(sums)).unique(dim=0)) > 1:
            raise ValueError(
                f"data must give the same batches in all {self.ranks.count} processes, which share "
                "their points, got batches that differ; shuffle with a generator of the same seed "
                "in each, without a DistributedSampler"
            )

    def _rows(self, start: int = 0) -> Iterator[Any]:
        """Row numbers, batch by batch; or the batches of an iterable; from a given one on."""
        source, size, drop_last = self.generator, self.config.batch_size, self.config.drop_last
        if isinstance(self.data, Stream):
            seed = torch.randint(2**62, (), generator=source, device=source.device).item()
            return self.data.batches(size, int(seed), start, drop_last)
        if not isinstance(self.data, Tensor):
            batches = iter(self.data)
            next(islice(batches, start, start), None)  # skips, now rather than when iterated
            return batches
        count = len(self.data)
        order = torch.randperm(count, generator=source, device=source.device)
        used = count - count % size if drop_last else count
        return iter(order[:used].to(self.data.device).split(size)[start:])

    def prepare(self, batch: Any) -> Any:
        """A batch on the device, transformed."""
        batch = map_tensors(lambda x: x.to(self.ranks.device, non_blocking=True), batch)
        return batch if self.transform is None else self.transform(batch, self.generator)


def on_device(data: Tensor, device: torch.device) -> Tensor:
    """A tensor on a GPU, if it takes at most a quarter of the free memory; else as it is."""
    if device.type != "cuda" or data.is_cuda:
        return data
    free, _ = torch.cuda.mem_get_info(device)
    return data.to(device) if 4 * data.nbytes <= free else data


def take_rows(batch: Any, rows: slice, points: int) -> Any:
    """Some points of a batch; what does not have the points along its first axis is left whole.

    Example:
        >>> take_rows({"x": torch.arange(4), "name": "a"}, slice(1, None, 2), 4)
        {'x': tensor([1, 3]), 'name': 'a'}
    """
    return map_tensors(lambda x: x[rows] if x.ndim and len(x) == points else x, batch)


def map_tensors(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """A function of every tensor of a batch, which may be in tuples, lists and dictionaries."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        found = [map_tensors(function, value) for value in batch]
        return type(batch)(*found) if hasattr(batch, "_fields") else type(batch)(found)
    return batch


def count_points(batch: Any) -> int:
    """Points in a batch: rows of its first tensor."""
    found: list[Tensor] = []
    map_tensors(found.append, batch)
    return len(found[0]) if found else 1


def _check_share(count: int, config: TrainConfig, ranks: Ranks) -> None:
    if config.drop_last and count < config.batch_size:
        raise ValueError(
            f"batch_size must be at most the number of points, {count}, got "
            f"{config.batch_size}; take smaller batches, or set drop_last=False"
        )
    shares, rest = ranks.count * config.accumulate, count % config.batch_size
    smallest = config.batch_size if config.drop_last or not rest else rest
    if smallest < shares:
        raise ValueError(
            f"batch_size must leave a point for each of the {ranks.count} processes times "
            f"{config.accumulate} parts in every batch, got one of {smallest} points; use larger "
            "batches, or drop_last=True"
        )

"""Batches, epoch after epoch, from where a run was interrupted."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_points, check_type
from scorematching.training.config import TrainConfig
from scorematching.training.ranks import Ranks
from scorematching.training.streams import Stream

logger = logging.getLogger("scorematching.training")

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
        sources: other generators that an iterable may draw from, such as that of a `DataLoader`.
        source_starts: their states at the beginning of this epoch.
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
        self.sources = _sources(data, generator)
        self.source_starts: dict[str, Tensor] = {}
        self.unused = {name: g.get_state() for name, g in self.sources.items()}
        self.compared = -1
        if isinstance(data, Tensor) and transform is None:
            check_points(data, "data")
        if isinstance(data, Tensor | Stream):
            _check_share(len(data), config, ranks)
        else:
            wanted = "data must be a tensor, a stream or an iterable of batches"
            kinds = () if hasattr(data, "__array__") else Iterable  # arrays are iterable, too
            check_type(data, kinds, wanted, "convert it with torch.as_tensor")

    def per_epoch(self) -> int | None:
        """Batches in an epoch; None if unknown."""
        if not isinstance(self.data, Tensor | Stream):
            return _length(self.data)
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
            self.source_starts = {name: g.get_state() for name, g in self.sources.items()}
            return self._rows()
        # In the middle of an epoch: shuffle as at its beginning, then restore the generators.
        # That of a loader is left: other processes of it may have drawn from it ahead of the run.
        default = self.sources.get("default", self.generator)
        now, default_now = self.generator.get_state(), default.get_state()
        self.generator.set_state(self.start)
        for name, state in self.source_starts.items():
            self.sources[name].set_state(state)
        rows = self._rows(self.position)
        default.set_state(default_now)
        self.generator.set_state(now)
        return rows

    def source_states(self) -> dict[str, Tensor]:
        """States of the other generators that were drawn from, for a checkpoint."""
        found = {}
        for name, generator in self.sources.items():
            now, before = generator.get_state(), self.unused.get(name)
            if before is None or not torch.equal(now, before):
                found[f"{name} at epoch"] = self.source_starts[name]
                found[f"{name} of data"] = now
        return found

    def restore_sources(self, states: Mapping[str, Tensor]) -> None:
        """Take over such states; generators without one were not drawn from in this epoch."""
        for name, generator in self.sources.items():
            self.source_starts[name] = states.get(f"{name} at epoch", self.unused[name])
            if f"{name} at epoch" in states:
                generator.set_state(states[f"{name} of data"])
                del self.unused[name]

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

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """What tells data of another run; None for an iterable."""
        if isinstance(self.data, Stream):
            return self.data.summary()
        return summarise(self.data) if isinstance(self.data, Tensor) else None

    def compare(self, before: Mapping[str, Any] | None) -> None:
        """Require the data of a checkpoint, whose order is continued; None if not known.

        Raises:
            ValueError: if their number, shape or order is another.
        """
        if self.summary is not None:
            compare_points("data", self.summary, before)

    def prepare(self, batch: Any) -> Any:
        """A batch on the device, transformed."""
        batch = map_tensors(lambda x: x.to(self.ranks.device, non_blocking=True), batch)
        return batch if self.transform is None else self.transform(batch, self.generator)


def summarise(data: Tensor, rows: int = 1000) -> dict[str, Any]:
    """Number and shape of points, mean and standard deviation of finite numbers in the first ones.

    Example:
        >>> summarise(torch.tensor([[1.0], [3.0]]))
        {'rows': 2, 'event': [1], 'mean': 2.0, 'std': 1.0}
    """
    first = data[:rows].double()
    first = first[first.isfinite()] if first.isfinite().any() else first.new_zeros(1)
    mean, std = float(first.mean()), float(first.std(correction=0))
    return {"rows": len(data), "event": list(data.shape[1:]), "mean": mean, "std": std}


def compare_points(name: str, now: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
    """Require the number and shape of points of a checkpoint, and warn of other values.

    Args:
        name: of the argument.
        now: from `summarise`.
        before: that in the checkpoint; None if not known.

    Raises:
        ValueError: if number, shape or order are others.
    """
    if before is None:
        return
    values = ("mean", "std")
    changed = [k for k in now if k not in values and now[k] != before.get(k)]
    if changed:
        words = (f"{k} {now[k]} (was {before.get(k)})" for k in changed)
        raise ValueError(
            f"{name} must be that of the run that is resumed, got {', '.join(words)}; begin "
            "another run in another folder"
        )
    if any(abs(now[k] - before[k]) > 1e-5 * before["std"] for k in values if k in now):
        logger.warning(
            "%s are not those of the run that is resumed: their first rows have mean "
            "%.6g and standard deviation %.6g (were %.6g and %.6g); if that is not meant, "
            "begin another run in another folder",
            {"data": "the data", "validation": "the points of validation"}[name],
            *(numbers[k] for numbers in (now, before) for k in values),
        )


def _sources(data: Any, generator: torch.Generator) -> dict[str, torch.Generator]:
    """The generators besides the run's own that an iterable may draw from while it shuffles."""
    if isinstance(data, Tensor | Stream):
        return {}
    batches = getattr(data, "batch_sampler", None)  # where it is given, the sampler is inside it
    owners = (data, getattr(data, "sampler", None), batches, getattr(batches, "sampler", None))
    own = [g for o in owners if isinstance(g := getattr(o, "generator", None), torch.Generator)]
    names = ("loader", *(f"loader {i}" for i in range(2, len(own) + 1)))
    found = {"default": torch.default_generator} | dict(zip(names, dict.fromkeys(own)))
    return {name: g for name, g in found.items() if g is not generator}


def _length(data: Any) -> int | None:
    """Batches in an iterable; None if unknown, as in a `DataLoader` of an `IterableDataset`."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        return None


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
    """Points in a batch: rows of its first tensor that has axes.

    Example:
        >>> count_points({"level": torch.tensor(0.1), "x": torch.zeros(4, 2)})
        4
    """
    found: list[Tensor] = []
    map_tensors(found.append, batch)
    return next((len(x) for x in found if x.ndim), 1)


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

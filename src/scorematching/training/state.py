"""The state of a run: what callbacks see, and what a checkpoint holds."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._graphs import generator_or_default
from scorematching.training.checkpoint import (
    Checkpoint,
    optimizer_state,
    prefixed,
    require_class,
    require_dtypes,
    require_parameters,
    restore_optimizer,
    under,
)
from scorematching.training.config import TrainConfig
from scorematching.training.data import Batches
from scorematching.training.early_stopping import EarlyStopping
from scorematching.training.loss_reader import LossReader
from scorematching.training.parallel import Parallel
from scorematching.training.progress import Record
from scorematching.training.same_run import describe_run, require_same
from scorematching.training.step import Step
from scorematching.training.weights import (
    is_sharded,
    snapshot,
    split_like,
    split_state,
    temporary_weights,
    whole,
)


class TrainState:
    """The state of a run.

    Attributes:
        module: what is trained.
        training_step: the step, with the optimiser.
        optimizer: the optimiser.
        parameters: those of the optimiser, in its order.
        average: their moving averages; empty where there is none.
        step: number of steps taken.
        total: number of steps of the run.
        points: points seen, over all processes and all epochs.
        history: the records so far.
        stopping: the best validation so far.
        best: its weights; None before the first validation.
        rates: learning rates of parameter groups that a callback has set; None where none has.

    Example:
        >>> from scorematching.training import Callback
        >>> class Print(Callback):
        ...     def on_end(self, state: TrainState) -> None:
        ...         print(f"{state.step} of {state.total} steps, {state.points} points")
    """

    def __init__(self, module: nn.Module, step: Step, batches: Batches, parallel: Parallel) -> None:
        self.module, self.batches, self.config = module, batches, batches.config
        self.parallel = parallel
        self.training_step, self.optimizer = step, step.optimizer
        self.parameters, self.average = step.parameters, step.average
        self.ranks, self.generator = batches.ranks, batches.generator
        self.validation_noise = self.generator.get_state()  # the same for all validations
        self.total = total_steps(self.config, batches.per_epoch())
        self.step, self.points, self.history = 0, 0, list[Record]()
        self.losses = LossReader(self.ranks, self.config.log_every)
        self.stopping = EarlyStopping(
            self.config.patience, min_improvement=self.config.min_improvement
        )
        self.best: dict[str, Tensor] | None = None
        self.rates: list[float] | None = None
        self.arguments: dict[str, Any] = {}  # that a resumed run must share
        self._stopped, self._began = False, time.perf_counter()
        self._default_before: Tensor | None = self._default.get_state()

    @property
    def seconds(self) -> float:
        """Time taken, without interruptions and pauses."""
        return time.perf_counter() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the run ends here."""
        return self.step >= self.total or self._stopped or self.stopping.stop

    def stop(self) -> None:
        """End the run after this step."""
        self._stopped = True

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time inside the block. On a GPU, losses are read first."""
        self.losses.read()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._began += time.perf_counter() - start

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The module with averaged weights inside the block; as it is where there is no average.

        Weights that are split over processes are whole in the block, so that the module can be
        called; all processes must enter it.
        """
        with temporary_weights(self.parameters, self.average), self.parallel.whole_weights():
            yield

    def keep_best(self) -> None:
        """Keep the averaged weights as the best so far."""
        with temporary_weights(self.parameters, self.average):
            self.best = snapshot(self.module)

    def is_due(self, every: int) -> bool:
        """Whether to do now what is done every so many steps and after the last one."""
        return self.step % every == 0 or self.step == self.total

    # Checkpoints.

    def describe(self, *arguments: Any) -> None:
        """Keep what a resumed run must share: objective, validation, its objective, transform."""
        self.arguments = describe_run(self.optimizer, *arguments)

    def checkpoint(self) -> Checkpoint:
        """Everything that is needed to continue to the same digits, gathered from all processes.

        It does not depend on how many they are, or how weights are split over them.
        """
        generators = {
            "now": self.generator.get_state(),
            "epoch": self.batches.start,
            "validation": self.validation_noise,
            **self._drawn_by_layers(),
            **self.batches.source_states(),
        }
        reference = self.stopping.reference  # losses that later ones are compared with
        tensors = {
            **prefixed("module", self.module.state_dict()),
            **prefixed("average", dict(zip(self._names(), self.average))),
            **prefixed("optimizer", optimizer_state(self.optimizer)[0]),
            **({} if reference is None else {"stopping.reference": reference}),
            **prefixed("generator", {k: v[None] for k, v in generators.items()}),
        }
        best = None if self.best is None else self._gathered(self.best)
        return Checkpoint(self._numbers(), self._gathered(tensors), best)

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors in the main process, the parts of split ones in its memory, not a GPU's."""
        found = {}
        for name, tensor in tensors.items():
            full = whole(tensor)
            if self.ranks.is_main:
                found[name] = full.cpu() if is_sharded(tensor) else full
        return found

    def _numbers(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "total": self.total,
            "best_step": self.stopping.best_step,
            "best_loss": self.stopping.best_loss,
            "waited": self.stopping.waited,
            "epoch": self.batches.epoch,
            "position": self.batches.position,
            "points": self.points,
            "seconds": self.seconds,
            "processes": self.ranks.count,
            "last_finite": self.losses.last_finite,
            "recent": self.losses.recent,
            "optimizer": optimizer_state(self.optimizer)[1],
            "optimizer_class": type(self.optimizer).__name__,
            "optimizer_parameters": self._names(),
            "config": asdict(self.config),
            "data": self.batches.summary,
            "arguments": self.arguments,
            **({} if self.rates is None else {"rates": self.rates}),
            "history": [asdict(record) for record in self.history],
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over the state in a checkpoint."""
        state, tensors, best = checkpoint
        require_class(self.optimizer, state.get("optimizer_class"))
        require_parameters(self._names(), state.get("optimizer_parameters"))
        self.batches.compare(state.get("data"))
        require_same(self.arguments, state.get("arguments"))
        require_dtypes(self.module.state_dict(), under("module", tensors))
        self.best = None if best is None else split_state(best, self.module)
        self.module.load_state_dict(split_state(under("module", tensors), self.module))
        average = under("average", tensors)
        for kept, name in zip(self.average, self._names()):
            kept.copy_(split_like(average[name], kept))
        restore_optimizer(self.optimizer, under("optimizer", tensors), state["optimizer"])
        self.rates = state.get("rates")
        for group, rate in zip(self.optimizer.param_groups, self.rates or []):
            if isinstance(group["lr"], Tensor):  # which a CUDA graph reads
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        # Copied, since torch requires aligned memory of a state, and a row may not be aligned.
        states = {name: rows[0].clone() for name, rows in under("generator", tensors).items()}
        self.generator.set_state(states["now"])
        if "default" in states and self.ranks.count == state["processes"] == 1:
            self._default.set_state(states["default"])
            self._default_before = None
        self.batches.restore_sources(states)
        self.batches.start, self.validation_noise = states["epoch"], states["validation"]
        self.batches.epoch, self.batches.position = state["epoch"], state["position"]
        self.stopping = replace(
            self.stopping,
            best_loss=state["best_loss"],
            best_step=state["best_step"],
            waited=state["waited"],
            reference=tensors.get("stopping.reference"),
        )
        self.step = self.losses.step = state["step"]
        self.points, self.losses.recent = state["points"], state["recent"]
        self.losses.last_finite = state["last_finite"]
        self.history = [Record(**record) for record in state["history"]]
        self._began -= state["seconds"]

    def _drawn_by_layers(self) -> dict[str, Tensor]:
        """The state of torch's own generator, if something has drawn from it since the start.

        Where data may draw from it, too, it is among their states.
        """
        if any(source is self._default for source in self.batches.sources.values()):
            return {}
        now, before = self._default.get_state(), self._default_before
        return {} if before is not None and torch.equal(now, before) else {"default": now}

    @property
    def _default(self) -> torch.Generator:
        """Torch's own generator of the device, from which layers such as dropout draw."""
        return generator_or_default(None, self.ranks.device)

    def _names(self) -> list[str]:
        """Names of the parameters, in the order of the optimiser's."""
        names = {id(p): name for name, p in self.module.named_parameters()}
        return [names[id(p)] for p in self.parameters]


def total_steps(config: TrainConfig, per_epoch: int | None) -> int:
    """The number of steps of a run with so many batches per epoch; None if unknown."""
    if config.epochs is None:
        return config.steps or 0
    if per_epoch is None:
        raise ValueError(
            f"steps must be given for data of unknown length, got epochs={config.epochs}; "
            "use TrainConfig(steps=...)"
        )
    return config.epochs * per_epoch

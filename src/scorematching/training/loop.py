"""The training loop: draw a batch, take a step, validate, checkpoint.

One loop for everything that is trained here, on a CPU, on a GPU, or in several processes started
by `torchrun` or `accelerate launch`. A run that is interrupted, even by ``kill -9``, goes on to the
same digits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_flag
from scorematching.errors import DivergedError
from scorematching.fields import Field
from scorematching.training.alternating import Loss
from scorematching.training.checkpoint import (
    Checkpoint,
    optimizer_numbers,
    optimizer_tensors,
    prefixed,
    previous,
    restore_optimizer,
    save,
    snapshot,
    under,
)
from scorematching.training.config import TrainConfig, learning_rate
from scorematching.training.data import Batches, Transform, count_points
from scorematching.training.distributed import Ranks, join, source_of_noise
from scorematching.training.early_stopping import EarlyStopping
from scorematching.training.progress import Display, Log, Record, display
from scorematching.training.step import (
    EagerStep,
    LossModule,
    Turns,
    assign,
    captured_step,
    module_of,
    set_learning_rate,
)
from scorematching.training.validation import (
    Validation,
    evaluating,
    noise_of,
    validator,
    weights_of,
)


@dataclass(frozen=True)
class TrainResult:
    """What a run came to; the weights are in the module.

    Attributes:
        history: records every ``log_every`` steps and at every validation.
        steps: steps taken.
        best_step: step of the least validation loss; None without validation.
        best_loss: that loss.
        stopped_early: whether patience ended before the run did.
        seconds: time taken, interruptions left out.
        points: points seen, over all processes and all epochs.

    Example:
        >>> TrainResult([], steps=10, seconds=2.0, points=1280).points_per_second
        640.0
    """

    history: list[Record]
    steps: int
    best_step: int | None = None
    best_loss: float | None = None
    stopped_early: bool = False
    seconds: float = 0.0
    points: int = 0

    @property
    def points_per_second(self) -> float:
        """Throughput, validation and checkpoints included."""
        return self.points / self.seconds if self.seconds > 0 else math.nan


def train(
    model: nn.Module | Field,
    objective: Loss,
    data: Tensor | Iterable[Any],
    config: TrainConfig,
    *,
    validation: Validation | None = None,
    validation_objective: Loss | None = None,
    transform: Transform | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    generator: torch.Generator | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> TrainResult:
    """Train a module in place, and say how it went.

    Minimises the mean of ``objective(model, batch)``. Afterwards the module has the weights of
    the best validation; without validation, the last ones; averaged, where there is an average.

    Args:
        model: an `nn.Module` (a log-density), or a `Field` around one.
        objective: an `Objective`, or any function ``(model, batch, generator=...) -> (N,)``: that
            is how models with a context are trained. `Alternating` trains parts in turn.
        data: a tensor ``(N, *event)``, shuffled anew in each epoch, or an iterable of batches.
        config: everything that is a number.
        validation: held-out points ``(N, *event)``, or a function of the model, which it gets in
            evaluation mode, without gradients and with averaged weights.
        validation_objective: for held-out points; None takes the training objective. Its noise
            is the same at every validation, so that losses can be compared.
        transform: makes points of each batch, ``(batch, generator) -> batch``: dequantisation,
            noise.
        optimizer: called with the parameters and ``lr=``; `functools.partial` sets the rest.
        generator: source of all randomness, on the device of the module, with a state of its own
            in each process; None is torch's default generator.
        folder: where checkpoints and ``log.jsonl`` go; None writes nothing.
        resume: go on from the checkpoint in the folder, if there is one.
        progress: show a bar on a terminal, lines elsewhere.

    Returns:
        Losses on the way, the best step, time and throughput.

    Raises:
        DivergedError: if a loss is not finite. The module then has the weights of the best
            validation; without validation, those of the last checkpoint, whether or not there is
            a folder.
        TypeError: if an argument is of the wrong type.
        ValueError: if arguments do not fit each other, or the run in the folder.

    Example:
        >>> from scorematching import SlicedScoreMatchingVR, models
        >>> density, x = models.MLPDensity(dim=2, hidden=(8,)), torch.randn(64, 2)
        >>> config = TrainConfig(steps=20, batch_size=32, lr=1e-2)
        >>> train(density, SlicedScoreMatchingVR(), x, config).steps
        20
    """
    _check_arguments(config, folder, resume, generator, progress)
    module = module_of(model)
    ranks = join(next(module.parameters()).device)
    source = source_of_noise(generator, ranks)
    losses = LossModule(model, objective, source, config.precision, touch=ranks.count > 1)
    run = _Run(
        module=module,
        step=_make_step(losses, optimizer, config, ranks, source, isinstance(data, Tensor)),
        batches=Batches(data, config, ranks, source, transform),
        validation=validator(
            model, validation, objective, validation_objective, source, ranks.device
        ),
        config=config,
        folder=None if folder is None else Path(folder),
    )
    run.begin(resume)
    with display(progress and ranks.is_main, run.total, run.taken) as shown:
        run.loop(shown)
    return run.result()


class _Run:
    """A run and where it stands."""

    def __init__(
        self,
        module: nn.Module,
        step: Any,
        batches: Batches,
        validation: Callable[[], float] | None,
        config: TrainConfig,
        folder: Path | None,
    ) -> None:
        self.module, self.step, self.batches = module, step, batches
        self.validation, self.config, self.folder = validation, config, folder
        self.ranks, self.generator = batches.ranks, batches.generator
        self.noise = self.generator.get_state()  # of validations: the same for all of them
        self.total = _total_steps(config, batches.per_epoch())
        self.stopping = EarlyStopping(config.patience)
        self.taken, self.points, self.history = 0, 0, list[Record]()
        self.unseen: list[Tensor] = []  # losses that are still on the device
        self.recent: list[float] = []  # losses since the last record
        self.last_finite: float | None = None
        self.best: dict[str, Tensor] | None = None
        self.good, self.saved = snapshot(module), -1
        self.began, self.log = time.perf_counter(), Log(None)
        if validation is None and config.patience is not None:
            raise ValueError(
                f"patience must come with a validation, got {config.patience} without; "
                "pass validation=, held-out points for example"
            )

    def loop(self, shown: Display) -> None:
        """Train to the end, in plain sight."""
        stream = iter(self.batches)
        try:
            while self.taken < self.total and not self.stopping.stop:
                self.take(next(stream))
                shown.advance(self.taken)
                validated = self.validation is not None and self.due(self.config.validate_every)
                if validated or self.due(self.config.log_every):
                    record = self.report(self.validate() if validated else None)
                    shown.show(record, self.points / record.seconds)
                if self.stopping.stop or self.due(self.config.checkpoint_every):
                    self.save()
            self.check_weights()
        except DivergedError as error:
            self.module.load_state_dict(self.good if self.best is None else self.best)
            self.log.write("diverged", error.step, {"last_finite_loss": error.last_finite_loss})
            raise
        self.deliver()

    def take(self, batch: Any) -> None:
        """One step."""
        set_learning_rate(self.step.optimizer, self.rate(self.taken))
        self.unseen.append(self.step(batch))
        self.taken += 1
        self.points += count_points(batch) * self.ranks.count
        # Looking at a loss waits for the device, or for other processes.
        alone_on_cpu = self.ranks.device.type == "cpu" and self.ranks.count == 1
        if len(self.unseen) >= (1 if alone_on_cpu else self.config.log_every):
            self.look()

    def look(self) -> None:
        """Fetch the losses that are still on the device, and require them to be finite."""
        if not self.unseen:
            return
        losses = self.ranks.gather(torch.stack(self.unseen)).mean(0).tolist()
        self.unseen.clear()
        for step, loss in enumerate(losses, self.taken - len(losses) + 1):
            if not math.isfinite(loss):
                raise DivergedError(step, self.last_finite)
            self.last_finite = loss
        self.recent += losses

    def validate(self) -> float:
        """The validation loss, and the weights if they are the best so far."""
        self.look()
        parameters, average = self.step.parameters, self.step.average
        with weights_of(parameters, average), noise_of(self.generator, self.noise):
            with evaluating(self.module):
                loss = self.validation() if self.validation else math.nan
            loss = self.ranks.from_main(torch.tensor(loss, dtype=torch.float64)).item()
            if self.stopping.update(self.taken, loss):
                self.best = snapshot(self.module)
        return loss

    def report(self, validation: float | None) -> Record:
        """A record of the steps since the last one."""
        self.look()
        loss = sum(self.recent) / len(self.recent)
        record = Record(self.taken, loss, self.rate(self.taken - 1), self.seconds(), validation)
        self.recent.clear()
        self.history.append(record)
        self.log.record(record)
        return record

    def save(self) -> None:
        """Keep this state as the last good one, in memory and on disk."""
        self.look()
        if self.saved == self.taken or not _is_finite(self.module):
            return
        self.good, self.saved = snapshot(self.module), self.taken
        if self.folder is not None:
            checkpoint = self.checkpoint()
            if self.ranks.is_main:
                save(self.folder, checkpoint)
                self.log.write("checkpoint", self.taken)
            self.ranks.wait()

    def check_weights(self) -> None:
        """Require that the last step, too, has left finite weights."""
        self.look()
        if not _is_finite(self.module):
            raise DivergedError(self.taken + 1, self.last_finite)

    def deliver(self) -> None:
        """Give the module its final weights: the best, or the average, or the last."""
        if self.best is not None:
            self.module.load_state_dict(self.best)
        else:
            assign(self.step.parameters, self.step.average)
        self.log.write("end", self.taken, {"seconds": self.seconds()})

    def due(self, every: int) -> bool:
        """Whether it is time for something done every so many steps, and at the end."""
        return self.taken % every == 0 or self.taken == self.total

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from zero."""
        return learning_rate(self.config, step, self.total)

    def seconds(self) -> float:
        """Time taken, interruptions left out."""
        return time.perf_counter() - self.began

    def result(self) -> TrainResult:
        """What the run came to."""
        best_step, best_loss = self.stopping.best_step, self.stopping.best_loss
        stopped = self.taken < self.total
        seconds = self.seconds()
        return TrainResult(
            self.history, self.taken, best_step, best_loss, stopped, seconds, self.points
        )

    # Checkpoints.

    def begin(self, resume: bool) -> None:
        """Start, or go on from a checkpoint."""
        self.began = time.perf_counter()
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        found = previous(self.folder, resume, self.config, self.ranks.count)
        self.ranks.wait()
        if found is not None:
            self.restore(found)
        self.log = Log(self.folder / "log.jsonl" if self.ranks.is_main else None, self.taken)
        event = "start" if found is None else "resume"
        self.log.write(event, self.taken, {"total": self.total, "config": asdict(self.config)})

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on to the same digits."""
        average = dict(zip(self.trained_names(), self.step.average))
        generators = {
            "now": self.generator.get_state(),
            "epoch": self.batches.start,
            "validation": self.noise,
        }
        tensors = {
            **prefixed("module", self.module.state_dict()),
            **prefixed("average", average),
            **prefixed("optimizer", optimizer_tensors(self.step.optimizer)),
            **prefixed("generator", {k: self.ranks.gather(v) for k, v in generators.items()}),
        }
        state = {
            "step": self.taken,
            "total": self.total,
            "best_step": self.stopping.best_step,
            "best_loss": self.stopping.best_loss,
            "waited": self.stopping.waited,
            "epoch": self.batches.epoch,
            "position": self.batches.position,
            "points": self.points,
            "seconds": self.seconds(),
            "processes": self.ranks.count,
            "last_finite": self.last_finite,
            "recent": self.recent,
            "optimizer": optimizer_numbers(self.step.optimizer),
            "config": asdict(self.config),
            "history": [asdict(record) for record in self.history],
        }
        return Checkpoint(state, tensors, self.best)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become the run that wrote a checkpoint."""
        state, tensors = checkpoint.state, checkpoint.last
        self.module.load_state_dict(under("module", tensors))
        average = under("average", tensors)
        for kept, name in zip(self.step.average, self.trained_names()):
            kept.copy_(average[name])
        restore_optimizer(self.step.optimizer, under("optimizer", tensors), state["optimizer"])
        # Copied, as torch takes the memory of a state to be aligned, and a row may not be.
        generators = under("generator", tensors)
        generators = {name: rows[self.ranks.rank].clone() for name, rows in generators.items()}
        self.generator.set_state(generators["now"])
        self.batches.start, self.noise = generators["epoch"], generators["validation"]
        self.batches.epoch, self.batches.position = state["epoch"], state["position"]
        self.stopping = EarlyStopping(
            self.config.patience, state["best_loss"], state["best_step"], state["waited"]
        )
        self.taken, self.points, self.recent = state["step"], state["points"], state["recent"]
        self.history = [Record(**record) for record in state["history"]]
        self.last_finite, self.best = state["last_finite"], checkpoint.best
        self.good, self.saved = snapshot(self.module), self.taken
        self.began -= state["seconds"]

    def trained_names(self) -> list[str]:
        """Names of the parameters, in the order of the optimiser's."""
        return [name for name, p in self.module.named_parameters() if p.requires_grad]


def _make_step(
    losses: LossModule,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    config: TrainConfig,
    ranks: Ranks,
    generator: torch.Generator,
    static: bool,
) -> Any:
    """The step: captured where it can be, eager elsewhere."""
    wrapped = ranks.wrap(losses)
    parameters = [p for p in losses.module.parameters() if p.requires_grad]
    optimizer = make_optimizer(parameters, lr=config.lr)
    possible = (
        ranks.count == 1
        and ranks.device.type == "cuda"
        and all("capturable" in group for group in optimizer.param_groups)
    )
    if config.capture and not possible:
        raise ValueError(
            "capture must be None or False except for one process on a GPU and an optimiser such "
            f"as Adam, got True for {ranks.count} on {ranks.device} with "
            f"{type(optimizer).__name__}; None captures where that is possible"
        )
    capture = possible and static and config.drop_last if config.capture is None else config.capture
    turns = Turns(wrapped, losses.parts, optimizer, config.max_norm, config.ema_decay)
    return captured_step(turns, generator) if capture else EagerStep(turns)


def _total_steps(config: TrainConfig, per_epoch: int | None) -> int:
    if config.epochs is None:
        return config.steps or 0
    if per_epoch is None:
        raise ValueError(
            f"steps must be given for data of unknown length, got epochs={config.epochs}; "
            "use TrainConfig(steps=...)"
        )
    return config.epochs * per_epoch


def _check_arguments(
    config: Any,
    folder: str | Path | None,
    resume: bool,
    generator: torch.Generator | None,
    progress: bool,
) -> None:
    if not isinstance(config, TrainConfig):
        raise TypeError(
            f"config must be a TrainConfig, got {type(config).__name__}; "
            "try TrainConfig(steps=1000)"
        )
    check_flag(resume, "resume", "True goes on with the run in the folder")
    check_flag(progress, "progress", "True shows a bar or lines")
    if folder is None and resume:
        raise ValueError(
            "folder must be given to resume a run, got None; pass the folder of the run"
        )
    if folder is not None and generator is None:
        raise ValueError(
            "generator must be given along with a folder, got None; a run can only be resumed to "
            "the same digits with a generator of its own"
        )


def _is_finite(module: nn.Module) -> bool:
    values = [v for v in module.state_dict().values() if v.is_floating_point()]
    return bool(torch.stack([v.isfinite().all() for v in values]).all())

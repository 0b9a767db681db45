"""The training loop: draw a batch, take a step, validate, checkpoint.

One loop for everything that is trained here, on a CPU, on a GPU, or in several processes started
by `torchrun` or `accelerate launch`. A run that was interrupted, even by ``kill -9``, continues to
the same digits.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scorematching.errors import DivergedError
from scorematching.fields import Field
from scorematching.training.alternating import Loss
from scorematching.training.arguments import check_arguments
from scorematching.training.callbacks import Callback
from scorematching.training.checkpoint import Checkpoint, naming_values, previous, save
from scorematching.training.config import TrainConfig
from scorematching.training.data import Batches, Transform, count_points
from scorematching.training.early_stopping import mean_and_error
from scorematching.training.executors.choice import choose, preferences
from scorematching.training.interrupts import Interruption
from scorematching.training.lock import locked
from scorematching.training.losses import LossModule, module_of
from scorematching.training.lost_ranks import naming_lost_ranks
from scorematching.training.memory import advising
from scorematching.training.parallel import Parallel, Sharded
from scorematching.training.progress import Display, Log, Record, display
from scorematching.training.ranks import join, source_of_noise
from scorematching.training.result import TrainResult
from scorematching.training.schedule import Schedule, rate_factor
from scorematching.training.sharing import SharedGradients
from scorematching.training.state import TrainState
from scorematching.training.step import Gradients, Step
from scorematching.training.streams import Stream
from scorematching.training.validation import Validation, make_validation, temporary_state
from scorematching.training.weights import assign, check_state, evaluation_mode, is_finite, snapshot

logger = logging.getLogger("scorematching.training")


@torch.inference_mode(False)
@torch.enable_grad()
def train(
    model: nn.Module | Field,
    objective: Loss,
    data: Tensor | Stream | Iterable[Any],
    config: TrainConfig,
    *,
    validation: Validation | None = None,
    validation_objective: Loss | None = None,
    transform: Transform | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    executor: str | Sequence[str] = "auto",
    callbacks: Sequence[Callback] = (),
    generator: torch.Generator | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> TrainResult:
    """Train a module in place, on the mean of ``objective(model, batch)``.

    Afterwards the module has the weights of the best validation; without validation, the last
    ones; averaged, if an average is kept. See `scorematching.training` for details of arguments.

    Args:
        model: an `nn.Module` (a log-density), or a `Field` around one.
        objective: an `Objective`, or any function ``(model, batch, generator=...) -> (N,)``.
        data: a tensor ``(N, *event)``, a `Stream` of a file, or an iterable of batches.
        config: the settings that are numbers.
        validation: held-out points ``(N, *event)``, or a function of the model.
        validation_objective: for held-out points; None takes the training objective.
        transform: makes points of each batch and of held-out points, ``(batch, generator) ->
            batch``: dequantisation, noise.
        optimizer: called with the parameters and ``lr=``; None is Adam.
        executor: how steps are run; "auto" takes the fastest way that works.
        callbacks: called during the run; see `Callback`.
        generator: source of all randomness; None is torch's default generator.
        folder: for checkpoints and ``log.jsonl``; None writes nothing.
        resume: continue from the checkpoint in the folder, if there is one.
        progress: show a bar on a terminal, lines elsewhere.

    Raises:
        DivergedError: if a loss is not finite.
        ValueError: if arguments do not fit each other, or the run in the folder.

    Example:
        >>> from scorematching import SlicedScoreMatchingVR, models
        >>> density, x = models.MLPDensity(dim=2, hidden=(8,)), torch.randn(64, 2)
        >>> config = TrainConfig(steps=20, batch_size=32, lr=1e-2)
        >>> train(density, SlicedScoreMatchingVR(), x, config).steps
        20
    """
    run = (generator, folder, resume, progress)
    check_arguments(config, validation, validation_objective, callbacks, *run)
    ranks = join(next(module_of(model).parameters()).device, config.parallel)
    source = source_of_noise(generator, ranks)
    losses = LossModule(model, objective, source, config.precision, touch=ranks.count > 1)
    batches = Batches(data, config, ranks, source, transform)
    state = _make_state(losses, optimizer, batches)
    held_out = make_validation(model, validation, validation_objective or objective, batches)
    state.describe(objective, validation, validation_objective, transform)
    return _Run(state, held_out, losses, executor, folder, callbacks).run(resume, progress)


class _Run:
    """The loop around the state of a run."""

    def __init__(
        self,
        state: TrainState,
        validation: Callable[[], Tensor] | None,
        losses: LossModule,
        executor: str | Sequence[str],
        folder: str | Path | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.state, self.config, self.ranks = state, state.config, state.ranks
        self.validation, self.callbacks = validation, callbacks
        self.folder = None if folder is None else Path(folder)
        check_state(state.module, stored=folder is not None)
        self.good, self.saved = snapshot(state.module), -1
        self.log, self.interruption = Log(None), Interruption()
        static = isinstance(state.batches.data, Tensor | Stream) and self.config.drop_last
        step, total = state.training_step, state.total
        names = preferences(executor, self.ranks.device, static, total)
        self.execute = choose(names, step, losses, self.ranks, self.log_executor, total)

    def run(self, resume: bool, progress: bool) -> TrainResult:
        """Begin or continue the run, and train to the end."""
        with naming_lost_ranks(self.ranks), self.lock(), self.interruption.watched():
            self.begin(resume)
            total, step = self.state.total, self.state.step
            with display(progress and self.ranks.is_main, total, step) as shown:
                self.loop(shown)
        return self.result()

    def lock(self) -> AbstractContextManager[bool | None]:
        """Keep other runs out of the folder, which is created."""
        if self.folder is None or not self.ranks.is_main:
            return nullcontext()
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder)

    def begin(self, resume: bool) -> None:
        """Restore the checkpoint in the folder, if there is one, and open the log."""
        state, found = self.state, None
        if self.folder is not None:
            self.ranks.wait()  # for the folder and its lock
            found = previous(self.folder, resume, self.config)
            self.ranks.wait()
        if found is not None:
            _check_validation(found, self.validation)
            with naming_values(self.folder):
                state.restore(found)
            self.good, self.saved = snapshot(state.module), state.step
        if self.folder is not None:
            self.log = Log(self.folder / "log.jsonl" if self.ranks.is_main else None, state.step)
        settings = {"total": state.total, "config": asdict(self.config)}
        event = "start" if found is None else "resume"
        self.log.write(event, state.step, {**settings, "executor": self.execute.name})
        self.scheduler = Schedule(state.optimizer, self.config, state.total, state.step)

    def loop(self, shown: Display) -> None:
        """Train to the end."""
        state = self.state
        try:
            self.notify("on_start")
            stream = iter(state.batches)
            while not state.is_over:
                self.take_step(next(stream))
                shown.advance(state.step)
                validates = self.validation is not None and state.is_due(self.config.validate_every)
                if validates or state.is_due(self.config.log_every):
                    record = self.record(self.validate() if validates else (None, None))
                    shown.show(record, state.points / record.seconds)
                if state.is_over or state.is_due(self.config.checkpoint_every):
                    self.save()
                self.notify("on_step")
                self.keep_rates()
                if self.interruption.agreed(self.ranks, state.step, state.losses.every):
                    self.interrupt()
            self.save()
            if not self.ranks.all(is_finite(state.module)):  # after the last step, too
                raise DivergedError(state.step + 1, state.losses.last_finite)
        except DivergedError as error:
            state.module.load_state_dict(self.good if state.best is None else state.best)
            state.parallel.close()
            self.log.write("diverged", error.step, {"last_finite_loss": error.last_finite_loss})
            raise
        self.finish()

    def interrupt(self) -> None:
        """End the run after Ctrl-C, with a checkpoint and a line on how to go on."""
        self.save()
        self.log.write("interrupted", self.state.step)
        advice = "the weights are in the module; pass folder= to be able to go on later"
        if self.folder is not None:
            advice = f"the checkpoint is in {self.folder}; train with resume=True goes on from it"
        message = f"interrupted after step {self.state.step} of {self.state.total}: {advice}"
        if self.ranks.is_main:
            logger.warning(message)
        raise KeyboardInterrupt(message)

    def take_step(self, batch: Any) -> None:
        """One step on a batch; its loss stays on the device."""
        with advising(batch):
            loss = self.execute(batch)
        self.state.step += 1
        self.state.points += count_points(batch)
        self.keep_rates()
        self.scheduler.step()
        self.state.losses.add(loss)

    def keep_rates(self) -> None:
        """Keep learning rates that a callback has set, also after the checkpoint of this step."""
        if self.callbacks and self.scheduler.keep_changes():
            self.state.rates = [float(rate) for rate in self.scheduler.base_lrs]
            if self.saved == self.state.step:
                self.saved = -1
                self.save()

    def validate(self) -> tuple[float, float | None]:
        """The validation loss and its standard error; keeps the best weights."""
        state = self.state
        state.losses.read()
        fixed_noise = temporary_state(state.generator, state.validation_noise)
        with state.averaged_weights(), fixed_noise, evaluation_mode(state.module):
            losses = self.validation() if self.validation else torch.tensor(math.nan)
        losses = self.ranks.from_main(losses.cpu())
        if state.stopping.update(state.step, losses):
            state.keep_best()
        return mean_and_error(losses)

    def record(self, validation: tuple[float | None, float | None]) -> Record:
        """Record the steps since the last record."""
        state = self.state
        _require_held(state)
        factor = rate_factor(self.config, state.step - 1, state.total)
        lr = float(self.scheduler.base_lrs[0]) * factor
        record = Record(state.step, state.losses.mean(), lr, state.seconds, *validation)
        state.history.append(record)
        self.log.write("record", record.step, asdict(record))
        self.notify("on_record", record)
        return record

    def save(self) -> None:
        """Keep this state in memory and on disk, if its weights are finite."""
        state = self.state
        state.losses.read()
        if self.saved == state.step or not self.ranks.all(is_finite(state.module)):
            return
        self.keep_rates()
        self.good, self.saved = snapshot(state.module), state.step
        if self.folder is not None:
            checkpoint = state.checkpoint()
            if self.ranks.is_main:
                save(self.folder, checkpoint)
                self.log.write("checkpoint", state.step)
            self.ranks.wait()

    def finish(self) -> None:
        """Give the module its final weights: the best, or the average, or the last."""
        state = self.state
        if state.best is not None:
            state.module.load_state_dict(state.best)
        else:
            assign(state.parameters, state.average)
        state.parallel.close()
        self.log.write("end", state.step, {"seconds": state.seconds})
        self.notify("on_end")

    def notify(self, moment: str, *details: Any) -> None:
        """Call a method of all callbacks."""
        for callback in self.callbacks:
            getattr(callback, moment)(self.state, *details)

    def log_executor(self, name: str, reason: str) -> None:
        """Log that an executor replaces another."""
        self.log.write("executor", self.state.step, {"executor": name, "reason": reason})

    def result(self) -> TrainResult:
        """The course of the run."""
        state, stopping = self.state, self.state.stopping
        return TrainResult(
            state.history,
            state.step,
            stopping.best_step,
            stopping.best_loss,
            state.step < state.total,
            state.seconds,
            state.points,
            self.execute.name,
        )


def _make_state(
    losses: LossModule,
    make_optimizer: Callable[..., torch.optim.Optimizer] | None,
    batches: Batches,
) -> TrainState:
    """The state before the first step; the optimiser gets the parameters as they are split."""
    config, ranks = batches.config, batches.ranks
    shards = config.parallel == "fsdp" and ranks.count > 1
    parallel = (Sharded if shards else Parallel)(losses, ranks)
    optimizer = _make_optimizer(losses.module, make_optimizer, config.lr)
    gradients = Gradients(losses)
    if ranks.count * config.accumulate > 1:
        gradients = SharedGradients(losses, parallel, batches)
    step = Step(gradients, optimizer, losses.parts, config.max_norm, config.ema_decay)
    return TrainState(losses.module, step, batches, parallel)


def _make_optimizer(
    module: nn.Module, make: Callable[..., torch.optim.Optimizer] | None, lr: float
) -> torch.optim.Optimizer:
    """The optimiser over all parameters that are trained."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    _check_makes_optimizer(make)
    optimizer = (make or _adam)(list(trained.values()), lr=lr)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer must take a step on gradients alone, got LBFGS, which evaluates the loss "
            "several times and needs one without noise; use torch.optim.Adam"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in trained.items() if id(p) not in held]
    if missing or len(held) > len(trained):
        raise ValueError(
            "optimizer must hold the parameters that are trained and no others, got one with "
            f"{len(held)} of them for {len(trained)}, without {', '.join(missing) or 'none'}; "
            "freeze parameters with requires_grad_(False)"
        )
    return optimizer


def _check_makes_optimizer(make: Any) -> None:
    if isinstance(make, torch.optim.Optimizer) or not (make is None or callable(make)):
        made = isinstance(make, torch.optim.Optimizer)
        name = type(make).__name__ if made else "Adam"
        raise TypeError(
            "optimizer must be called with parameters and lr=, got "
            f"{'an optimiser that is made already' if made else repr(make)}; pass the class "
            f"torch.optim.{name}, or a function for other settings: "
            "lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)"
        )


def _check_validation(found: Checkpoint, validation: Any) -> None:
    """Refuse to go on without validation: the best weights would stay those of earlier steps."""
    if found.best is not None and validation is None:
        raise ValueError(
            "validation must be given to resume a run that had one, got None: its best weights, of "
            f"step {found.state['best_step']}, would count as those of later steps; pass the same "
            "validation"
        )


def _require_held(state: TrainState) -> None:
    """Refuse parameters that were unfrozen during the run: no optimiser would change them."""
    held = {id(p) for p in state.parameters}
    named = state.module.named_parameters()
    if left := [name for name, p in named if p.requires_grad and id(p) not in held]:
        raise ValueError(
            "parameters must need gradients when a run begins, which gives them to the optimiser, "
            f"got {left[0]}, unfrozen later; train in two runs, the second with it unfrozen"
        )


def _adam(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam; on a GPU in its fused form, which reads and writes the weights once."""
    return torch.optim.Adam(parameters, lr=lr, fused=parameters[0].is_cuda or None)

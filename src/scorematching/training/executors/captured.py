"""A training step recorded as a CUDA graph, and replayed."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count
from scorematching._graphs import on_side_stream, record
from scorematching.training.executors.constants import Constants
from scorematching.training.step import Step

MANY = 16
"""Graphs of one step at which its user is warned: each keeps memory and takes time to record."""


class Captured:
    """A training step that is recorded as a CUDA graph once it has run a few times.

    A batch of another shape or dtype is recorded anew, and so is a learning rate that is a number.
    On a CPU every call runs the step as it is.

    Args:
        step: the step.
        generator: source of its random numbers.
        warmup: how many calls run it as it is.
        holders: objects whose numbers and flags it reads, which must not change; see `Constants`.

    Attributes:
        recorded: by shape, dtype and learning rates: the graph, its batch and its loss.

    Raises:
        ValueError: if the optimiser is on a GPU and not capturable.
    """

    def __init__(
        self,
        step: Step,
        generator: torch.Generator | None,
        warmup: int = 3,
        holders: Iterable[Any] = (),
    ) -> None:
        check_count(
            warmup, "warmup", "the first step makes the optimiser's state, which no graph can"
        )
        self.step, self.generator, self.calls_left = step, generator, warmup
        self.holders, self.constants = list(holders), Constants(())
        self.recorded: dict[Any, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        if any(p.is_cuda for p in step.parameters):
            _check_capturable(step.optimizer)

    def prepare(self, batch: Any) -> None:
        """Do what must be done once before batches like this one, without a step."""
        self.step.prepare(batch)

    def __call__(self, x: Tensor) -> Tensor:
        """One step on a batch; returns its mean loss, detached."""
        if not x.is_cuda:
            return self.step(x)
        if self.calls_left > 0:
            self.calls_left -= 1
            return on_side_stream(lambda: self.step(x), x.device)
        if not self.recorded:
            self.constants = Constants([*self.holders, self.step.optimizer], places=True)
        self.constants.require_unchanged()
        graph, static_x, loss = self._graph_for(x)
        static_x.copy_(x)
        graph.replay()
        return loss.clone()

    def _graph_for(self, x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        """The graph of batches like this one, with its batch and its loss."""
        key = (x.shape, x.dtype, *self._number_rates())
        if key not in self.recorded:
            static_x, words = x.clone(), ("this step", "train eagerly")
            work = lambda: self.step(static_x)  # noqa: E731
            graph, loss = record(work, x.device, self.generator, *words)
            self.recorded[key] = graph, static_x, loss
            if len(self.recorded) == MANY:
                _warn_of_many(len({key[2:] for key in self.recorded}) > 1)
        return self.recorded[key]

    def _number_rates(self) -> tuple[Any, ...]:
        """Learning rates that a graph holds as constants; it reads tensors at each replay."""
        rates = (group["lr"] for group in self.step.optimizer.param_groups)
        return tuple(rate for rate in rates if not isinstance(rate, Tensor))


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Set an optimiser up for CUDA graphs: learning rates as tensors, ``capturable=True``."""
    for group in optimizer.param_groups:
        device, dtype = group["params"][0].device, group["params"][0].dtype
        # Fused optimisers read single precision, whatever the dtype of the parameters.
        wide = torch.float32 if group.get("fused") else torch.promote_types(dtype, torch.float32)
        group["lr"] = torch.tensor(float(group["lr"]), dtype=wide, device=device)
        group["capturable"] = True
    expect_steps_without_graph(optimizer)


def expect_steps_without_graph(optimizer: torch.optim.Optimizer) -> None:
    """Keep torch from warning of steps of a capturable optimiser that are not captured.

    The first ones are not, nor are those of a copy it is compared with.
    """
    optimizer._warned_capturable_if_run_uncaptured = True


def _warn_of_many(rates: bool) -> None:
    """Say that each learning rate, or otherwise each shape, has a graph of its own."""
    what, instead = "shape of batches", "use batches of one shape"
    if rates:
        what = "learning rate"
        instead = "make lr a tensor, as in Adam(..., lr=torch.tensor(1e-3), capturable=True)"
    warnings.warn(
        f"{MANY} CUDA graphs of this step are recorded, one for each {what}, and each keeps its "
        f"memory; {instead}",
        stacklevel=5,
    )


def _check_capturable(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if group.get("capturable") is False:
            name = type(optimizer).__name__
            raise ValueError(
                f"optimizer must be capturable to run inside a CUDA graph, got {name} with "
                f"capturable=False; make it with torch.optim.{name}(..., capturable=True)"
            )

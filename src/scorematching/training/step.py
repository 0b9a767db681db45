"""One training step: for each phase gradients, clipping and optimiser; then the weight average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Gradients:
    """The gradients of the mean of losses ``(batch, phase) -> (N,)``, by autograd."""

    def __init__(self, losses: Callable[[Any, int], Tensor]) -> None:
        self.losses = losses

    def prepare(self, batch: Any) -> None:
        """Do what must be done once before batches like this one; nothing here."""

    def __call__(self, batch: Any, phase: int) -> Tensor:
        """Set ``.grad`` of the parameters, which have none; returns the mean loss, detached."""
        loss = self.losses(batch, phase).mean()
        loss.backward()
        return loss.detach()


class Step:
    """One training step; executors run it eagerly, compiled or recorded as a CUDA graph.

    Args:
        gradients: sets the gradients of a phase.
        optimizer: over all parameters that are trained.
        parts: the parameters that each phase trains; None is one phase that trains all.
        max_norm: clip the norm of each phase's gradient to this; None does not clip.
        ema_decay: decay of an exponential moving average of the parameters; None keeps none.

    Attributes:
        update: does what ``optimizer.step()`` does.
        parameters: those of the optimiser, in its order.
        average: their moving averages; empty where there is none.
    """

    def __init__(
        self,
        gradients: Gradients,
        optimizer: torch.optim.Optimizer,
        parts: Sequence[Sequence[nn.Parameter]] | None = None,
        max_norm: float | None = None,
        ema_decay: float | None = None,
    ) -> None:
        self.gradients, self.optimizer, self.max_norm = gradients, optimizer, max_norm
        self.update: Callable[[], Any] = lambda: optimizer.step()  # schedules replace the method
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.phases = []
        for part in parts or [self.parameters]:
            trained = {id(p) for p in part}
            self.phases.append((part, [p for p in self.parameters if id(p) not in trained]))
        self.average = [p.detach().clone() for p in self.parameters] if ema_decay else []
        # swa_utils.AveragedModel reads a counter from the device, which a CUDA graph forbids.
        self.update_average = get_ema_multi_avg_fn(ema_decay) if ema_decay else None

    def __call__(self, batch: Any) -> Tensor:
        """Run all phases on a batch; returns the mean loss of the last, detached."""
        for phase, (trained, others) in enumerate(self.phases):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.gradients(batch, phase)
            if self.max_norm is not None:
                nn.utils.clip_grad_norm_(trained, self.max_norm)
            for parameter in others:
                parameter.grad = None  # optimisers skip what has no gradient, and its state
            self.update()
        if self.update_average is not None:
            self.update_average(self.average, self.parameters, None)
        return loss

    def prepare(self, batch: Any) -> None:
        """Do what must be done once before batches like this one, without a step."""
        self.gradients.prepare(batch)

    def using(self, gradients: Gradients, update: Callable[[], Any]) -> Step:
        """The same step, with gradients taken and the optimiser's update done another way."""
        other = copy(self)
        other.gradients, other.update = gradients, update
        return other

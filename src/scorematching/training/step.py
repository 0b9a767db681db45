"""One training step: loss, backward, clip, step, for each phase; then average."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from scorematching.capture import CapturedStep, descend
from scorematching.fields import Field
from scorematching.objectives import Objective
from scorematching.training.alternating import Loss, phases_of


class LossModule(nn.Module):
    """A model together with its objective, ``batch -> losses (N,)``.

    Data parallelism averages the gradients of what passes through the module it wraps, once
    every parameter has one. So the objective, with the derivatives it takes, is inside; and
    parameters that it never uses, such as the last bias of a log-density, get a gradient of zero.

    Args:
        model: an `nn.Module`, or a `Field` around one.
        objective: an `Objective`, any function ``(model, batch, generator=...) -> (N,)``, or an
            `Alternating` of several.
        generator: source of randomness; None is torch's default generator.
        precision: "float32", or "bf16" for mixed precision.
        touch: give unused parameters their gradient of zero.

    Attributes:
        parts: for each phase of the objective, the parameters that it trains.

    Raises:
        TypeError: if the model is neither, or the objective cannot be called.

    Example:
        >>> from scorematching import ScoreMatching
        >>> from scorematching.models import MLPDensity
        >>> loss = LossModule(MLPDensity(dim=2), ScoreMatching())
        >>> loss(torch.zeros(5, 2)).mean().backward()
        >>> loss.module.net[-1].bias.grad.tolist()  # a constant has no score
        [0.0]
    """

    def __init__(
        self,
        model: nn.Module | Field,
        objective: Loss,
        generator: torch.Generator | None = None,
        precision: str = "float32",
        touch: bool = True,
    ) -> None:
        """Put the two together."""
        super().__init__()
        if not callable(objective):
            raise TypeError(
                f"objective must be an Objective, got {type(objective).__name__}; "
                "SlicedScoreMatchingVR() is a good start"
            )
        self.module = module_of(model)
        self.precision, self.touch = precision, touch
        phases = phases_of(objective, self.module)
        self.parts = [part for _, part in phases]
        self._losses = lambda batch, i: phases[i][0](model, batch, generator=generator)

    def forward(self, batch: Any, phase: int = -1) -> Tensor:
        """The loss of every point of a batch, ``(N,)``, in a phase."""
        with self._autocast():
            losses: Tensor = self._losses(batch, phase)
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if self.touch and losses.requires_grad:
            losses = _Touch.apply(losses, *parameters)
        return losses

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision != "bf16":
            return nullcontext()
        device = next(self.module.parameters()).device.type
        # Weights kept in the cache would be frozen into a CUDA graph.
        return torch.autocast(device, torch.bfloat16, cache_enabled=device != "cuda")


class _Touch(torch.autograd.Function):
    """The losses as they are; in the backward pass zeros for all parameters.

    Adding ``0 * parameter`` to the losses would do the same, except that 0 * inf is NaN.
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, *parameters: Tensor) -> Tensor:
        """Pass the losses on."""
        ctx.save_for_backward(*parameters)
        return losses.view_as(losses)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Pass the gradient on, and give every parameter a zero, which takes no memory."""
        zeros = (p.new_zeros(()).expand_as(p) for p in ctx.saved_tensors)
        return gradient, *zeros


class _Part:
    """An optimiser as seen by one phase: it moves some of its parameters, the others stay.

    Args:
        optimizer: over all parameters.
        parameters: those of the phase.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        mine = {id(p) for p in parameters}
        self.optimizer, self.param_groups = optimizer, [{"params": parameters}]
        self.others = [p for p in everything if id(p) not in mine]

    def step(self) -> None:
        for p in self.others:
            p.grad = None  # torch's optimisers pass over what has no gradient, state and all
        self.optimizer.step()


class Turns:
    """What a step does with a batch, whether or not it is recorded.

    Args:
        losses: the wrapped `LossModule`.
        parts: the parameters that each of its phases trains.
        optimizer: over the module's parameters.
        max_norm: clip the norm of the gradient to this; None leaves it alone.
        ema_decay: decay of the running average; None for none.
    """

    def __init__(
        self,
        losses: nn.Module,
        parts: list[list[nn.Parameter]],
        optimizer: torch.optim.Optimizer,
        max_norm: float | None,
        ema_decay: float | None,
    ) -> None:
        """Divide the optimiser among the phases."""
        self.losses, self.optimizer = losses, optimizer
        self.parts: list[Any] = [_Part(optimizer, part) for part in parts]
        self.max_norm, self.ema_decay = max_norm, ema_decay

    def take(self, batch: Any, parameters: list[Tensor], average: list[Tensor]) -> Tensor:
        """One step in each phase; returns the mean loss of the last, detached."""
        for phase, part in enumerate(self.parts):
            self.optimizer.zero_grad(set_to_none=True)
            loss = descend(self.losses(batch, phase).mean(), part, self.max_norm, [], None)
        if self.ema_decay:
            torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - self.ema_decay)
        return loss


class EagerStep:
    """A training step, one operation after another; the same arithmetic as `CapturedStep`.

    Args:
        turns: what to do.
    """

    def __init__(self, turns: Turns) -> None:
        """Prepare the average."""
        self.turns, self.optimizer = turns, turns.optimizer
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.average = [p.detach().clone() for p in self.parameters] if turns.ema_decay else []

    def __call__(self, batch: Any) -> Tensor:
        """One step on a batch; returns its mean loss, detached."""
        return self.turns.take(batch, self.parameters, self.average)


class _Captured(CapturedStep):
    """The same step as one CUDA graph, which takes batches that are one tensor."""

    def __init__(self, turns: Turns, generator: torch.Generator) -> None:
        # The losses have their objective inside; `_step`, which would ask for one, is replaced.
        super().__init__(
            turns.losses,
            Objective(),
            turns.optimizer,
            turns.max_norm,
            turns.ema_decay,
            generator,
        )
        self.turns = turns

    def __call__(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"batches must be tensors for steps to be captured, got {type(x).__name__}; "
                "set capture=False"
            )
        return super().__call__(x)

    def _step(self, x: Tensor) -> Tensor:
        return self.turns.take(x, self.parameters, self.average)


def captured_step(turns: Turns, generator: torch.Generator) -> CapturedStep:
    """The same step as one CUDA graph."""
    for group in turns.optimizer.param_groups:
        # Numbers would be frozen into the graph; a tensor is read anew at every replay.
        device, dtype = group["params"][0].device, group["params"][0].dtype
        wide = torch.promote_types(dtype, torch.float32)
        group["lr"] = torch.tensor(float(group["lr"]), dtype=wide, device=device)
        if "capturable" in group:
            group["capturable"] = True
    return _Captured(turns, generator)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of parameters this learning rate."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def module_of(model: Any) -> nn.Module:
    """The module that is trained: the model itself, or what a field is around."""
    module = model.model.call if isinstance(model, Field) else model
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the model must be an nn.Module, or a field around one, got {model!r}; where a score "
            "network takes more than x, train the network with an objective of your own: "
            "lambda net, batch, generator: ..."
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(
            f"the model must have parameters to train, got {type(module).__name__} with none; "
            "check requires_grad"
        )
    return module


def assign(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    """Copy values into parameters; nothing where there are none."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values):
            parameter.copy_(value)

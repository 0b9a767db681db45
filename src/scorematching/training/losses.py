"""A model together with its objective, as one module from a batch to losses."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from scorematching._checks import check_initialised, check_type
from scorematching.fields import Field
from scorematching.objectives import Objective
from scorematching.objectives.layerwise import SignTape
from scorematching.training.alternating import Loss, phases_of
from scorematching.training.drawn import DrawnLoss, ObjectiveLoss


class LossModule(nn.Module):
    """A model together with its objective, ``batch -> losses (N,)``.

    Data parallelism averages the gradients of what passes through the module it wraps, and waits
    until every parameter has one. So the objective and its derivatives are inside the module, and
    parameters that it never uses, such as the last bias of a log-density, get a zero gradient.

    Args:
        model: an `nn.Module`, or a `Field` around one.
        objective: an `Objective`, a `DrawnLoss`, any function ``(model, batch, generator=...) ->
            (N,)``, or an `Alternating` of several.
        generator: source of randomness; None is torch's default generator.
        precision: "float32", or "bf16" for mixed precision.
        touch: give unused parameters a zero gradient.
        module: the module that is trained, where the model is another function of it; None is
            the model itself.

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
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        advice = "SlicedScoreMatchingVR() is a good start"
        check_type(objective, Callable, "objective must be an Objective", advice)
        if isinstance(objective, type):
            name = objective.__name__
            raise TypeError(f"objective must be an Objective, got the class {name}; pass {name}()")
        self.module = module_of(model) if module is None else module
        self.precision, self.touch, self.generator = precision, touch, generator
        self._objective = objective
        losses = (loss for loss, _ in phases_of(objective, self.module))
        self._losses: list[Any] = [
            ObjectiveLoss(f) if isinstance(f, Objective) else f for f in losses
        ]
        self._model = lambda: model  # in a function, so that it is no second submodule

    @property
    def parts(self) -> list[list[nn.Parameter]]:
        """For each phase of the objective, the parameters that it trains."""
        return [part for _, part in phases_of(self._objective, self.module)]

    @property
    def holders(self) -> list[Any]:
        """Objects whose attributes the losses may read: all modules, and losses of the user's."""
        inner = [getattr(f, name, None) for f in self._losses for name in ("objective", "__self__")]
        return [*self.modules(), *(f for f in (*self._losses, *inner) if hasattr(f, "__dict__"))]

    def draw(self, batch: Any, phase: int = -1) -> Any:
        """The noise of a phase for a batch; None where there is none, or the loss draws its own."""
        loss = self._losses[phase]
        if not isinstance(loss, DrawnLoss):
            return None
        return loss.draw(self._model(), batch, self.generator)

    def share(self, noise: Any, batch: Any, rows: slice, phase: int = -1) -> Any:
        """The noise of some points of a batch; None where it is drawn for them anew."""
        return None if noise is None else self._losses[phase].share(noise, batch, rows)

    def draws_while_running(self, noise: Any, phase: int = -1) -> bool:
        """Whether the loss draws random numbers that are not in ``noise``, from `draw`."""
        if noise is None:
            return not isinstance(self._losses[phase], ObjectiveLoss)
        return any(isinstance(part, SignTape) for part in tree_leaves(noise))

    def forward(
        self,
        batch: Any,
        phase: int = -1,
        noise: Any = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss of every point of a batch, ``(N,)``, in a phase.

        Args:
            batch: what the objective takes, mostly ``(N, *event)``.
            phase: number of the phase; that of the last is what is validated.
            noise: from `draw`; None lets the objective draw it.
            generator: source of randomness of this call; None is that of the module.
        """
        with self._autocast():
            if noise is None:
                source = self.generator if generator is None else generator
                losses = self._losses[phase](self._model(), batch, generator=source)
            else:
                losses = self._losses[phase].loss(self._model(), batch, noise)
        if self.touch and losses.requires_grad:
            losses = _Touch.apply(losses, *(p for p in self.parameters() if p.requires_grad))
        return losses

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision != "bf16":
            return nullcontext()
        device = next(self.parameters()).device.type
        # A CUDA graph would replay the weights of the cache, not the present ones.
        return torch.autocast(device, torch.bfloat16, cache_enabled=device != "cuda")


class _Touch(torch.autograd.Function):
    """The identity on losses, with a gradient of zero for all parameters.

    Adding ``0 * parameter`` to the losses would do the same, except that 0 * inf is NaN.
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, *parameters: Tensor) -> Tensor:
        """Return the losses, in memory of their own."""
        ctx.save_for_backward(*parameters)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient, and for every parameter a zero that takes no memory."""
        zeros = (p.new_zeros(()).expand_as(p) for p in ctx.saved_tensors)
        return gradient, *zeros


def require_losses(losses: Tensor, points: int) -> None:
    """Require one loss per point, where sums of them are taken.

    Raises:
        ValueError: for a mean, or for one loss per coordinate.
    """
    if losses.numel() != points:
        raise ValueError(
            f"the objective must return the loss of every point, of shape ({points},), got shape "
            f"{tuple(losses.shape)}; leave out .mean(), and sum over the axes of a point"
        )


def module_of(model: Any) -> nn.Module:
    """The module that is trained: the model itself, or the one inside a field."""
    module = model.model.call if isinstance(model, Field) else model
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the model must be an nn.Module, or a field around one, got {model!r}; where a score "
            "network takes more than x, train the network with an objective of your own: "
            "lambda net, batch, generator: ..."
        )
    check_initialised([*module.parameters(), *module.buffers()])
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(
            f"the model must have parameters to train, got {type(module).__name__} with none; "
            "check requires_grad"
        )
    return module

"""Whole training steps for loops of one's own: captured as a CUDA graph, compiled, or both.

They run the same step by the same executors as `scorematching.training.train`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from scorematching._checks import check_shape
from scorematching.fields import Field
from scorematching.objectives import Objective
from scorematching.training.executors import Captured, CompiledGradients
from scorematching.training.losses import LossModule
from scorematching.training.step import Gradients, Step


class CapturedStep:
    """A training step as one CUDA graph: loss, gradients, clipping, optimiser, weight average.

    ``step(x)`` takes one optimiser step on the mean loss of a batch and returns that loss. The
    first calls run eagerly, the next records the graph, and later ones replay it: the same
    numbers as eager steps, without the time to launch their operations. A batch of another shape
    is recorded anew, and so is a new learning rate; for a schedule give the optimiser a tensor for
    ``lr``. Numbers that module and objective hold, and other options of the optimiser, must stay as
    they are. On a CPU every call runs eagerly.

    Args:
        module: a log-density module, or a `Field` around any model.
        objective: what to minimise.
        optimizer: over the model's parameters; on a GPU it must be capturable, as in
            ``torch.optim.Adam(parameters, lr, capturable=True)``.
        max_norm: clip the norm of the gradient to this; None does not clip.
        ema_decay: decay of a moving average of the parameters, kept in ``average``.
        generator: source of randomness, on the device of the batches; None is torch's default.
        warmup: how many calls run eagerly before the graph is recorded, at least one.

    Attributes:
        average: moving averages of the optimiser's parameters, in its order; empty without decay.

    Example:
        >>> from scorematching import SlicedScoreMatchingVR
        >>> from scorematching.models import MLPDensity
        >>> density = MLPDensity(dim=2)
        >>> step = CapturedStep(density, SlicedScoreMatchingVR(), torch.optim.Adam(
        ...     density.parameters(), lr=1e-3))
        >>> step(torch.randn(8, 2)).ndim
        0
    """

    def __init__(
        self,
        module: Any,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        max_norm: float | None = None,
        ema_decay: float | None = None,
        generator: torch.Generator | None = None,
        warmup: int = 3,
    ) -> None:
        gradients = Gradients(lambda x, phase: objective(module, x, generator=generator))
        step = Step(gradients, optimizer, max_norm=max_norm, ema_decay=ema_decay)
        self.optimizer, self.parameters, self.average = optimizer, step.parameters, step.average
        model = module.model.call if isinstance(module, Field) else module
        holders = [*(model.modules() if isinstance(model, nn.Module) else ()), objective]
        self.executor = Captured(step, generator, warmup, holders)

    def __call__(self, x: Tensor) -> Tensor:
        """One step on the batch ``x: (N, *event)``; returns its mean loss, detached."""
        return self.executor(x)


def compile_step(
    module: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    wrap: Callable[[Any], Any] = lambda f: f,
    generator: torch.Generator | None = None,
    captured: bool = False,
) -> Callable[[Tensor], Tensor]:
    """A training step compiled by inductor, on a CPU or a GPU.

    The loss and the gradients of all parameters are flattened to one list of plain operations,
    which the compiler can fuse; it cannot follow double backward itself. Noise is drawn outside.
    Compilation takes some seconds to a minute, and on a CPU it needs a C++ compiler.

    Args:
        module: the model.
        objective: an `Objective` of the library, or a function that draws no noise.
        optimizer: over the module's parameters.
        x: a batch of the shape that every later batch will have.
        wrap: makes a field of the model: `VectorField` for a score network.
        generator: source of randomness, on the device of x.
        captured: record the compiled step as a CUDA graph as well, as `CapturedStep` does: the
            fastest way to train on a GPU. On a CPU it changes nothing.

    Returns:
        ``step(x) -> loss``: one optimiser step on a batch, returning its mean loss.

    Raises:
        TypeError: if the objective draws noise while it runs (`CurvaturePropagation`).
        ValueError: if the model changes its buffers while it runs; by the step, if a batch has
            another shape.

    Example:
        >>> from scorematching import SlicedScoreMatchingVR, models
        >>> density = models.MLPDensity(dim=2)
        >>> adam = torch.optim.Adam(density.parameters())
        >>> step = compile_step(  # doctest: +SKIP
        ...     density, SlicedScoreMatchingVR(), adam, torch.randn(128, 2))
        >>> loss = step(torch.randn(128, 2))  # doctest: +SKIP
    """
    losses = LossModule(wrap(module), objective, generator, touch=False, module=module)
    step = Step(CompiledGradients(losses), optimizer)
    step.prepare(x)
    execute = Captured(step, generator, holders=losses.holders) if captured else step
    shape, wanted = x.shape, "x must have the shape the step was compiled for, {}"

    def checked(x: Tensor) -> Tensor:
        check_shape(x, shape, wanted, "drop the last batch, or compile another step")
        return execute(x)

    return checked

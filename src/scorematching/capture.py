"""Whole training steps, recorded once and replayed: as a CUDA graph, or compiled.

A step is many small operations; on a GPU, launching them takes longer than running them. A CUDA
graph launches the whole step at once. A compiler fuses the small operations, on a CPU too; it
cannot follow derivatives of derivatives, so the step is flattened to plain operations first. What
is compiled can be recorded as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from scorematching._graphs import on_side_stream, record
from scorematching.fields import as_field
from scorematching.objectives import Objective


class CapturedStep:
    """A training step as one CUDA graph: loss, gradients, clipping, optimiser, weight average.

    ``step(x)`` takes one optimiser step on the mean loss of a batch and returns that loss. The
    first calls run eagerly, the next records the graph, and later ones replay it: the same
    numbers as eager steps, without the time to launch them. A batch of another shape is recorded
    anew, and so is a new learning rate; for a schedule give the optimiser a tensor for ``lr``.
    On a CPU every call runs eagerly.

    Args:
        module: a log-density module, or a `Field` around any model.
        objective: what to minimise.
        optimizer: over the model's parameters; on a GPU it must be capturable, as in
            ``torch.optim.Adam(parameters, lr, capturable=True)``.
        max_norm: clip the norm of the gradient to this; None leaves it alone.
        ema_decay: decay of a running average of the parameters, kept in ``average``.
        generator: source of randomness, on the device of the batches; None is torch's default.
        warmup: how many calls run eagerly before the graph is recorded.

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
        """Prepare the step; nothing is recorded yet."""
        self.module, self.objective, self.optimizer = module, objective, optimizer
        self.max_norm, self.ema_decay, self.generator = max_norm, ema_decay, generator
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.average = [p.detach().clone() for p in self.parameters] if ema_decay else []
        self._replayed = _Replayed(self._step, optimizer, generator, warmup)

    def __call__(self, x: Tensor) -> Tensor:
        """One step on the batch ``x: (N, *event)``; returns its mean loss, detached."""
        return self._replayed(x)

    def _step(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.objective(self.module, x, generator=self.generator).mean()
        return descend(loss, self.optimizer, self.max_norm, self.average, self.ema_decay)


class _Replayed:
    """A step that is recorded as a CUDA graph once it has run a few times.

    Args:
        step: takes a batch ``x`` to its loss, with one step of the optimiser.
        optimizer: what it steps.
        generator: source of its randomness; None is torch's default generator.
        warmup: how many calls run as they are before the graph is recorded.
    """

    def __init__(
        self,
        step: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator | None,
        warmup: int,
    ) -> None:
        self.step, self.optimizer, self.generator = step, optimizer, generator
        self.calls_left = warmup
        self.recorded: dict[Any, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        if any(p.is_cuda for group in optimizer.param_groups for p in group["params"]):
            _check_capturable(optimizer)

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_cuda or self.calls_left > 0:
            self.calls_left -= 1
            return on_side_stream(lambda: self.step(x), x.device) if x.is_cuda else self.step(x)
        key = (x.shape, x.dtype, *self._constants())
        if key not in self.recorded:
            self.recorded[key] = self._record(x)
        graph, static_x, loss = self.recorded[key]
        static_x.copy_(x)
        graph.replay()
        return loss.clone()

    def _record(self, x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        static_x = x.clone()
        graph, loss = record(
            lambda: self.step(static_x), x.device, self.generator, "this step", "train eagerly"
        )
        return graph, static_x, loss

    def _constants(self) -> tuple[Any, ...]:
        """Numbers that a recorded graph holds fast; tensors are read anew at each replay."""
        rates = (group["lr"] for group in self.optimizer.param_groups)
        return tuple(rate for rate in rates if not isinstance(rate, Tensor))


def descend(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    max_norm: float | None,
    average: list[Tensor],
    ema_decay: float | None,
) -> Tensor:
    """What every step does with its loss: gradients, clipping, optimiser, weight average.

    Args:
        loss: the mean loss, with its graph; gradients are cleared already.
        optimizer: over the model's parameters.
        max_norm: clip the norm of the gradient to this; None leaves it alone.
        average: running averages of the optimiser's parameters, in their order.
        ema_decay: decay of those averages; None for none.

    Returns:
        The loss, detached.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    if ema_decay:
        torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - ema_decay)
    return loss.detach()


def compile_step(
    module: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    wrap: Callable[[Callable[[Tensor], Tensor]], Any] = lambda f: f,
    generator: torch.Generator | None = None,
    captured: bool = False,
) -> Callable[[Tensor], Tensor]:
    """A training step compiled by inductor, on a CPU or a GPU.

    The loss and the gradients of all parameters are flattened to one list of plain operations by
    `make_fx`, which the compiler can fuse (it cannot follow double backward itself). Noise is
    drawn outside. Compilation takes some seconds, and needs a C++ compiler on a CPU.

    Args:
        module: the model.
        objective: an `Objective` of the library.
        optimizer: over the module's parameters.
        x: a batch of the shape that every later batch will have.
        wrap: makes a field of the model's function: `VectorField` for a score network.
        generator: source of randomness, on the device of x.
        captured: record the compiled step as a CUDA graph as well, as `CapturedStep` does: the
            fastest way to train on a GPU. On a CPU it changes nothing.

    Returns:
        ``step(x) -> loss``: one optimiser step on a batch, returning its mean loss.

    Raises:
        TypeError: if the objective draws noise while it runs (`CurvaturePropagation`).
        ValueError: by the step, if a batch has another shape.

    Example:
        >>> from scorematching import SlicedScoreMatchingVR, models
        >>> density = models.MLPDensity(dim=2)
        >>> adam = torch.optim.Adam(density.parameters())
        >>> step = compile_step(  # doctest: +SKIP
        ...     density, SlicedScoreMatchingVR(), adam, torch.randn(128, 2))
        >>> loss = step(torch.randn(128, 2))  # doctest: +SKIP
    """
    noise = objective.draw(x, generator)
    if not isinstance(noise, Tensor | None):
        raise TypeError(
            f"objective must draw its noise before it looks at the model, got {objective}, which "
            "draws while it runs; train it eagerly or with CapturedStep"
        )
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}

    def detached() -> list[Tensor]:
        return [p.detach() for p in trained.values()]

    plain = _loss_and_gradients(module, objective, wrap, list(trained))
    compiled = torch.compile(make_fx(plain)(detached(), x, noise))

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            loss, gradients = compiled(detached(), x, objective.draw(x, generator))
        for parameter, gradient in zip(trained.values(), gradients):
            parameter.grad = gradient
        optimizer.step()
        return loss

    run_or_replay = _Replayed(run, optimizer, generator, warmup=3) if captured else run
    shape = x.shape

    def step(x: Tensor) -> Tensor:
        if x.shape != shape:
            raise ValueError(
                f"x must have the shape the step was compiled for, {tuple(shape)}, "
                f"got {tuple(x.shape)}; drop the last batch, or compile another step"
            )
        return run_or_replay(x)

    return step


def _loss_and_gradients(
    module: nn.Module, objective: Objective, wrap: Callable[..., Any], names: Sequence[str]
) -> Callable[..., Any]:
    """The mean loss and its gradients as a function of parameters, points and noise alone."""
    constants = {**dict(module.named_buffers()), **dict(module.named_parameters())}

    def evaluate(values: Sequence[Tensor], x: Tensor, noise: Any) -> tuple[Tensor, list[Tensor]]:
        leaves = [value.detach().requires_grad_() for value in values]
        state = {**constants, **dict(zip(names, leaves))}
        field = as_field(wrap(lambda z: functional_call(module, state, (z,))))
        loss = objective.loss(field, x, noise).mean()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        zeros = zip(gradients, leaves)
        return loss.detach(), [torch.zeros_like(p) if g is None else g for g, p in zeros]

    return evaluate


def _check_capturable(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if group.get("capturable") is False:
            name = type(optimizer).__name__
            raise ValueError(
                f"optimizer must be capturable to run inside a CUDA graph, got {name} with "
                f"capturable=False; make it with torch.optim.{name}(..., capturable=True)"
            )

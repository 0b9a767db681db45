"""Gradients by a compiled function.

A compiler fuses small operations, but cannot follow derivatives of derivatives. So loss and
gradients are first flattened by `make_fx` to one list of plain operations, which inductor compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from scorematching.training.losses import LossModule
from scorematching.training.step import Gradients


@dataclass(frozen=True)
class _Compiled:
    """A compiled function and the tensors it takes and gives gradients for."""

    function: Callable[..., Any]
    trained: list[nn.Parameter]
    fixed: list[Tensor]
    used: list[nn.Parameter]

    def __call__(self, batch: Tensor, noise: Any) -> tuple[Tensor, list[Tensor]]:
        with torch.no_grad():
            loss, gradients = self.function(_detached(self.trained), self.fixed, batch, noise)
        return loss, gradients


class CompiledGradients(Gradients):
    """The gradients of a mean loss, by one compiled function for each phase and batch shape.

    An `Objective` draws its noise outside of that function, from the same generator and in the
    same order as in eager steps. Compilation takes tens of seconds.

    Args:
        losses: model and objective.
    """

    def __init__(self, losses: LossModule) -> None:
        """Nothing is compiled yet."""
        super().__init__(losses)
        self.module = losses
        self.compiled: dict[Any, _Compiled] = {}

    def prepare(self, batch: Any) -> None:
        """Compile all phases for batches of this shape and dtype; draws no random numbers.

        Raises:
            TypeError: if the batch is not a tensor, or the objective draws while it runs.
            ValueError: if the model changes its own state while it runs.
            Exception: whatever the tracer or the compiler raise.
        """
        if not isinstance(batch, Tensor):
            raise TypeError(
                f"batches must be tensors for steps to be compiled, got {type(batch).__name__}; "
                'use executor="eager"'
            )
        for phase in range(len(self.module.parts)):
            if self._key(batch, phase) not in self.compiled:
                with _same_state(self.module.generator, batch.device):
                    self.compiled[self._key(batch, phase)] = self._compile(batch, phase)

    def __call__(self, batch: Any, phase: int) -> Tensor:
        """Set ``.grad`` of the parameters that the loss uses; returns the mean loss."""
        self.prepare(batch)
        compiled = self.compiled[self._key(batch, phase)]
        loss, gradients = compiled(batch, self.module.draw(batch, phase))
        for parameter, gradient in zip(compiled.used, gradients):
            parameter.grad = gradient
        return loss

    def _key(self, batch: Tensor, phase: int) -> Any:
        return phase, batch.shape, batch.dtype

    def _compile(self, batch: Tensor, phase: int) -> _Compiled:
        noise = self.module.draw(batch, phase)
        if not isinstance(noise, Tensor | None):
            raise TypeError(_DRAWS_WHILE_IT_RUNS.format("the objective"))
        trained = {id(p) for p in self.module.parts[phase]}
        named = list(self.module.named_parameters())
        leaves = {name: p for name, p in named if id(p) in trained}
        fixed = {name: p.detach() for name, p in named if id(p) not in trained}
        fixed |= dict(self.module.named_buffers())
        graph, used = self._flatten(leaves, fixed, batch, phase, noise)
        function, parameters = torch.compile(graph), list(leaves.values())
        chosen = [p for p, is_used in zip(parameters, used) if is_used]
        compiled = _Compiled(function, parameters, list(fixed.values()), chosen)
        compiled(batch, noise)  # the compiler runs at the first call
        return compiled

    def _flatten(
        self,
        leaves: dict[str, nn.Parameter],
        fixed: dict[str, Tensor],
        batch: Tensor,
        phase: int,
        noise: Any,
    ) -> tuple[GraphModule, list[bool]]:
        """Loss and gradients as plain operations, and which of the leaves have a gradient."""
        used: list[bool] = []

        def evaluate(
            values: Sequence[Tensor], others: Sequence[Tensor], batch: Tensor, noise: Any
        ) -> tuple[Tensor, list[Tensor]]:
            inputs = [value.detach().requires_grad_() for value in values]
            state = dict(zip([*leaves, *fixed], [*inputs, *others]))
            with torch.enable_grad():
                loss = functional_call(self.module, state, (batch, phase, noise)).mean()
                gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
            used[:] = [g is not None for g in gradients]
            return loss.detach(), [g for g in gradients if g is not None]

        # Copies, to see whether the model changes them.
        values, others = (
            [t.detach().clone() for t in tensors.values()] for tensors in (leaves, fixed)
        )
        graph = make_fx(evaluate)(values, others, batch, noise)
        _check_draws_nothing(graph)
        _check_unchanged([*values, *others], [*leaves.values(), *fixed.values()])
        return graph, used


_DRAWS_WHILE_IT_RUNS = (
    "objective must draw its noise before it evaluates the model, got noise that {} draws while it "
    "runs; train it eagerly or with CapturedStep"
)


def _check_draws_nothing(graph: GraphModule) -> None:
    """Require that no operation draws random numbers: a compiled one would draw others."""
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise TypeError(_DRAWS_WHILE_IT_RUNS.format(node.target))


def _check_unchanged(copies: list[Tensor], tensors: list[Tensor]) -> None:
    """Require that the model left its parameters and buffers as they were."""
    if not all(torch.equal(copy, tensor) for copy, tensor in zip(copies, tensors)):
        raise ValueError(
            "the model must not change its buffers or parameters to be compiled, got one that "
            "changes them while it runs; train it eagerly"
        )


def _detached(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [p.detach() for p in parameters]


@contextmanager
def _same_state(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Restore the state of the generator afterwards; None is torch's default generator."""
    if generator is None:
        cuda = device.type == "cuda"
        generator = (
            torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
        )
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)

"""Gradients by a compiled function.

A compiler fuses small operations, but cannot follow derivatives of derivatives. So loss and
gradients are first flattened by `make_fx` to one list of plain operations, which inductor compiles.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from scorematching._graphs import generator_or_default
from scorematching.training.executors.batches import batch_gradients
from scorematching.training.executors.constants import Constants
from scorematching.training.executors.precision import allows_bfloat16, round_products
from scorematching.training.executors.products import merge_products, saves_time
from scorematching.training.losses import LossModule
from scorematching.training.step import Gradients
from scorematching.training.validation import temporary_state

Tensors = list[Tensor]


class NoGain(RuntimeError):
    """Compilation of a step would take longer than it saves."""


class CompiledGradients(Gradients):
    """The gradients of a mean loss, by one compiled function for each phase and batch shape.

    An `Objective` or `DrawnLoss` draws its noise outside of that function, from the same generator
    and in the same order as in eager steps. Compilation takes tens of seconds. Each function is
    compared with the eager one once, at other weights and points than those it was traced with. On
    a GPU with ``torch.set_float32_matmul_precision("medium")`` matrix products are done in
    bfloat16.

    Args:
        losses: of the model.
        steps: of the run, in which compilation must save more time than it takes; None compiles
            whatever it takes.
    """

    def __init__(self, losses: LossModule, steps: int | None = None) -> None:
        super().__init__(losses)
        self.module, self.steps = losses, steps
        self.compiled: dict[Any, _Phase] = {}
        self.constants = Constants(())

    def prepare(self, batch: Any) -> None:
        """Compile all phases for batches of this shape, memory order and dtype, without drawing.

        Raises:
            TypeError: if the objective draws while it runs.
            ValueError: if the model changes its own state while it runs, or computes something by
                other means than torch's operations; if a parameter has a hook.
            NoGain: if it would not be faster, where that is asked for.
            Exception: whatever the tracer or the compiler raise.
        """
        if not self.compiled:
            self.constants = Constants(self.module.holders)
        source = generator_or_default(self.module.generator, batch.device)
        for phase in range(len(self.module.parts)):
            if _key(batch, phase) not in self.compiled:
                with temporary_state(source, source.get_state()):
                    noise = self.module.draw(batch, phase)
                    rest = (batch, noise, self.steps)
                    self.compiled[_key(batch, phase)] = _Phase(self.module, phase, *rest)

    def __call__(self, batch: Any, phase: int) -> Tensor:
        """Set ``.grad`` of the parameters that the loss uses; returns the mean loss."""
        self.prepare(batch)
        self.constants.require_unchanged()
        return self.compiled[_key(batch, phase)](batch, self.module.draw(batch, phase))


def _dense(noise: Any) -> list[Any]:
    """The tensors of noise as plain ones: what is known about their zeros holds for one call.

    Raises:
        TypeError: if noise has other parts than tensors, such as signs that are drawn when needed.
    """
    parts = tree_leaves(noise)
    if not all(isinstance(part, Tensor | None) for part in parts):
        raise TypeError(_DRAWS_WHILE_IT_RUNS.format("the objective"))
    return [part if part is None else part.as_subclass(Tensor) for part in parts]


class _Phase:
    """The compiled gradients of one phase, as a function of weights, points and noise.

    They are compiled for batches and noise like those given.
    """

    def __init__(
        self, losses: LossModule, phase: int, batch: Tensor, noise: Any, steps: int | None
    ) -> None:
        trained, named = {id(p) for p in losses.parts[phase]}, list(losses.named_parameters())
        self.losses, self.phase, self.steps = losses, phase, steps
        self.leaves = {name: p for name, p in named if id(p) in trained}
        self.fixed = {name: p.detach() for name, p in named if id(p) not in trained}
        self.fixed |= dict(losses.named_buffers())
        self.used: list[nn.Parameter] = []
        _check_no_hooks(self.leaves)
        self.function = self._compile(batch, noise)

    def __call__(self, batch: Tensor, noise: Any) -> Tensor:
        """Set the gradients; returns the mean loss."""
        values = [p.detach() for p in self.leaves.values()]
        with torch.no_grad():
            loss, gradients = self.function(values, list(self.fixed.values()), batch, _dense(noise))
        for parameter, gradient in zip(self.used, gradients):
            parameter.grad = _in_order_of(parameter, gradient)
        return loss

    def _compile(self, batch: Tensor, noise: Any) -> Callable[..., tuple[Tensor, Tensors]]:
        structure, parts = tree_structure(noise), _dense(noise)

        def evaluate(
            values: Tensors, others: Tensors, batch: Tensor, parts: list[Any]
        ) -> tuple[Tensor, Tensors]:
            noise = tree_unflatten(parts, structure)
            inputs = [value.detach().requires_grad_() for value in values]
            state = dict(zip([*self.leaves, *self.fixed], [*inputs, *others]))
            with torch.enable_grad():
                loss = functional_call(self.losses, state, (batch, self.phase, noise)).mean()
                gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
            found = zip(self.leaves.values(), gradients)
            self.used = [p for p, gradient in found if gradient is not None]
            return loss.detach(), [gradient for gradient in gradients if gradient is not None]

        values, others = _copies(self.leaves), _copies(self.fixed)
        evaluate(values, others, batch, parts)  # the model is checked eagerly only
        graph = make_fx(evaluate)(values, others, batch, parts)
        _check_draws_nothing(graph)
        _check_unchanged([*values, *others], [*self.leaves.values(), *self.fixed.values()])
        if batch.is_cuda:  # where small products do not fill the device
            if self.steps is not None and not saves_time(graph, self.steps):
                raise NoGain("its matrix products fill the GPU, and its steps are too few")
            merge_products(graph)
            if allows_bfloat16(graph):
                round_products(graph)
            batch_gradients(graph, unrounded=True)
        compiled = torch.compile(graph, dynamic=False, options=_compiler_options())
        function: Callable[..., tuple[Tensor, Tensors]] = compiled
        flipped = torch.empty_like(batch).copy_(batch.flip(0))  # in the same order in memory
        with torch.no_grad():
            for scale in (1.1, 1.0):
                inputs = ([scale * value for value in values], others, flipped, parts)
                expected = evaluate(*inputs)
                if expected[0].isfinite():
                    break
            _check_agree(function(*inputs), expected)
        return function


def _in_order_of(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A gradient with the strides of its parameter, as autograd and fused optimisers have it."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _compiler_options() -> dict[str, Any]:
    """Options of inductor, as far as this version of torch has them.

    One of its analyses (of torch 2.11) ends with an error on matrices that are stacked.
    """
    from torch._inductor import list_options  # takes a second

    options, known = {"triton.coalesce_tiling_analysis": False}, list_options()
    return {name: value for name, value in options.items() if name in known}


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    return [tensor.detach().clone() for tensor in tensors.values()]


def _key(batch: Tensor, phase: int) -> Any:
    return phase, batch.shape, batch.stride(), batch.dtype


_DRAWS_WHILE_IT_RUNS = (
    "objective must draw its noise before it evaluates the model, got noise that {} draws while it "
    "runs; train it eagerly or with CapturedStep"
)


def _check_draws_nothing(graph: GraphModule) -> None:
    """Require that no operation draws random numbers: a compiled one would draw others."""
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise TypeError(_DRAWS_WHILE_IT_RUNS.format(node.target))


def _check_no_hooks(parameters: Mapping[str, nn.Parameter]) -> None:
    """Require parameters without hooks: compiled gradients do not pass through autograd.

    Raises:
        ValueError: naming one that has a hook.
    """
    for name, parameter in parameters.items():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(
                "parameters must have no hooks to be compiled, which would be left out, got one on "
                f'{name}; train with executor="eager" or "captured"'
            )


def _check_unchanged(copies: Tensors, tensors: Tensors) -> None:
    """Require that the model left its parameters and buffers as they were."""
    if not all(torch.equal(copy, tensor) for copy, tensor in zip(copies, tensors)):
        raise ValueError(
            "the model must not change its buffers or parameters to be compiled, got one that "
            "changes them while it runs; train it eagerly"
        )


def _check_agree(found: tuple[Tensor, Tensors], expected: tuple[Tensor, Tensors]) -> None:
    """Require the same loss and gradients, up to the rounding of reduced precision.

    A result of numpy, or of a kernel that torch does not know, would be a constant of the graph.
    """
    vectors = [torch.cat([t.flatten().double() for t in (e[0], *e[1])]) for e in (found, expected)]
    error = (vectors[0] - vectors[1]).norm()
    exact = expected[0].dtype == torch.float64
    if not error <= (1e-6 if exact else 0.05) * vectors[1].norm():
        raise ValueError(
            "the model must consist of torch's operations to be compiled, got compiled gradients "
            f"that are {(error / vectors[1].norm()).item():.2g} from the eager ones; train eagerly"
        )

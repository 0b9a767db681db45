"""A model, how it is called, traced and evaluated, and questions about it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scorematching._checks import can_read_values, check_initialised
from scorematching.derivatives import double_backward, memory, verification
from scorematching.derivatives.engine.pairing import run
from scorematching.derivatives.engine.tape import Tape
from scorematching.derivatives.engine.trace import NeedsBuffers, Traced
from scorematching.derivatives.ops.compositions import twice_differentiable
from scorematching.derivatives.ops.indexing import TracedFactories

Check = Callable[[Any, Tensor], None]

Pair = tuple[Tensor, Tensor]
Way = Callable[..., Pair]
"""``(model, x, *arguments) -> (score, curvature or divergence)``."""


class RandomModelError(ValueError):
    """A model that answers differently from call to call, where that would be wrong."""


@dataclass(frozen=True)
class Model:
    """A model and how it is to be differentiated.

    Attributes:
        call: the model itself.
        check: raises if its output, at points x, has the wrong shape.
        kind: "log-density" or "vector field".
        check_smoothness: whether to refuse a model with kinks.
        route: "auto", "traced" or "reverse".
    """

    call: Callable[[Any], Any]
    check: Check
    kind: str
    check_smoothness: bool
    route: str

    @property
    def is_log_density(self) -> bool:
        """Whether the score is the gradient of the output, and not the output itself."""
        return self.kind == "log-density"

    @property
    def findings(self) -> memory.Findings:
        """What is known of the model in its present mode."""
        return memory.findings_of(self.call, self.kind)

    def trace(self, x: Tensor, tangents: Tensor | None, make: Callable[..., Tape]) -> Any:
        """The tape and the traced output at points; ``make(graphs=...)`` starts a tape."""
        findings = self.findings
        try:
            return self._trace(x, tangents, make(graphs=findings.graphs), findings)
        except NeedsBuffers:
            if findings.needs_buffers:
                raise
            findings.needs_buffers = True
            return self._trace(x, tangents, make(graphs=findings.graphs), findings)

    def _trace(
        self, x: Tensor, tangents: Tensor | None, tape: Tape, findings: memory.Findings
    ) -> tuple[Any, Traced]:
        with eager(), TracedFactories(tape) if findings.needs_buffers else nullcontext():
            y = run(self.call, x, tangents, tape)
        self.check(y.p, x)
        findings.met = tape.met
        self._keep(y.p, findings)
        return tape, y

    def _keep(self, y: Tensor, findings: memory.Findings) -> None:
        """Keep log-densities, which are checked once their score is known."""
        if self.is_log_density and can_read_values(y):
            findings.value = y.detach()

    def touch_parameters(self, value: Tensor) -> Tensor:
        """The value, made to depend on every parameter of a distributed module.

        Its processes wait for the gradients of all parameters, and a constant such as an output
        bias has none in a score.

        Raises:
            ValueError: if the module was built with ``static_graph=True``, whose hooks count
                gradient passes and give wrong gradients for derivatives of derivatives.
        """
        call: Any = self.call
        # At every step, where isinstance with this class, an abstract one, takes longer.
        if DistributedDataParallel not in type(call).__mro__:
            return value
        if call.static_graph:
            raise ValueError(
                "a DistributedDataParallel model must not have static_graph=True here, which gives "
                "wrong gradients for derivatives of derivatives; wrap training.LossModule(model, "
                "objective) in DistributedDataParallel instead"
            )
        return value + 0.0 * sum(p.sum() for p in call.parameters() if p.requires_grad)

    def evaluate(self, x: Tensor) -> Tensor:
        """The output at points, untraced; at a copy of them, which a model may change in place."""
        with eager():
            y = self.call(x.clone())
        self.check(y, x)
        return y

    def score(self, x: Tensor) -> Tensor:
        """The score, untraced, with a graph that can be differentiated twice more."""
        with twice_differentiable():
            y = self.evaluate(x)
        if not self.is_log_density:
            return y
        self._keep(y, self.findings)
        return double_backward.gradient(y, x)

    def evaluate_to_compare(self, x: Tensor) -> Tensor:
        """The output at points, to be compared with that at moved points.

        Raises:
            RandomModelError: if the evaluation draws random numbers.
        """
        if not can_read_values(x):
            return self.evaluate(x)
        before = _random_state(x)
        y = self.evaluate(x)
        if not all(torch.equal(a, b) for a, b in zip(before, _random_state(x))):
            raise RandomModelError(
                "the model must give the same answer at every call to be compared at moved "
                "points, got one that draws random numbers (dropout, stochastic depth); call "
                "model.eval(), or use SlicedScoreMatchingVR, which evaluates the model once"
            )
        return y

    def evaluate_to_subtract(self, x: Tensor) -> Tensor:
        """The output at points, from which that at points close to them is subtracted.

        Raises:
            RandomModelError: if the model is another one at the next call.
            ValueError: if it is evaluated in half precision, of which a difference has no digits.
        """
        check_initialised(verification.parameters_of(self.call))
        before = _versions(self.call)
        y = self.evaluate_to_compare(x)
        changed = _versions(self.call) != before
        if changed and can_read_values(x):
            raise RandomModelError(
                "the model must give the same answer at every call to be compared at moved "
                "points, got one that changes its buffers (spectral normalisation in training "
                "mode); call model.eval(), or use SlicedScoreMatchingVR, which evaluates "
                "the model once"
            )
        mixed = torch.is_autocast_enabled(x.device.type)
        if mixed or {x.dtype, y.dtype} & _HALF:
            found = "mixed precision" if mixed else f"points in {x.dtype} and values in {y.dtype}"
            raise ValueError(
                "differences between close points need a model in single precision or better, got "
                f"{found}, where rounding is larger; train in float32, or use "
                "SlicedScoreMatchingVR, which takes no differences"
            )
        return y


@dataclass(frozen=True)
class Question:
    """A question about a model, with two ways to answer it.

    Attributes:
        name: "curvature" or "divergence".
        traced: by the engine.
        reverse: by double backward.
        probe: the engine's curvature along directions, ``(model, x, v)``, to be checked.
        probe_reverse: that by double backward.
    """

    name: str
    traced: Way
    reverse: Way
    probe: Way | None = None
    probe_reverse: Way | None = None


def eager() -> AbstractContextManager[Any]:
    """A region in which functions that torch.compile wraps run as they were written."""
    if "torch._dynamo" not in sys.modules or torch.compiler.is_compiling():
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


_HALF = {torch.float16, torch.bfloat16}


def _versions(call: Any) -> list[tuple[int, int]]:
    """What changes where a buffer of real numbers is replaced or written into; counters may."""
    buffers = verification.buffers_of(call)
    return [(id(b), b._version) for b in buffers if b.is_floating_point() and not b.is_inference()]


def _random_state(x: Tensor) -> list[Tensor]:
    cuda = [torch.cuda.get_rng_state(x.device)] if x.is_cuda else []
    return [torch.get_rng_state(), *cuda]

"""Which way a question about a model is answered.

By tracing, where the model can be traced: exact, fast, and able to look at every operation. By
double backward, where it cannot (an operation with a hidden implementation, say): just as exact.
Either way the answer is the same to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from scorematching._checks import check_log_density
from scorematching._shapes import dimension, event_axes, inner
from scorematching.derivatives import pairing, reverse, sweeps, trace
from scorematching.derivatives.composed import twice_differentiable
from scorematching.derivatives.smoothness import require
from scorematching.derivatives.tracing import Tape, Untraceable
from scorematching.derivatives.verify import verify
from scorematching.errors import SmoothnessError

Check = Callable[[Any, Tensor], None]
Result = TypeVar("Result")
Pair = tuple[Tensor, Tensor]

FORWARD_COST = 2
"""Time of a tangent pass relative to a reverse pass, on a CPU, for choosing between the two.

A GPU carries all tangents in parallel, but takes reverse passes one after the other.
"""


class RandomModelError(ValueError):
    """A model that answers differently from call to call, where that would be wrong."""


@dataclass(frozen=True)
class Model:
    """A model and what is known about it, ready to be asked.

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

    def trace(
        self, x: Tensor, tangents: Tensor | None, tape: Tape, order: int, what: str = "curvature"
    ) -> Any:
        """The traced output; refused where it is not C^order."""
        try:
            y = pairing.run(self.call, x, tangents, tape)
            self.check(y.p, x)
            verify(self.call, x, y.p, tape)
        finally:  # what stopped the trace does not smooth the kinks before it
            if self.check_smoothness:
                require(tape.kinks, order, f"the {what} of a {self.kind}")
        return y

    def inspect(self, x: Tensor, order: int) -> Tensor:
        """The output at points, refused where moved copies of them could not be compared."""

        def traced() -> Tensor:
            tape = Tape(x.shape[0])
            y = self.trace(x, None, tape, order)
            _refuse_randomness(tape)
            return y.p

        return self.choose(traced, lambda: self.evaluate(x))

    def evaluate(self, x: Tensor) -> Tensor:
        """The output at points, untraced."""
        y = self.call(x)
        self.check(y, x)
        return y

    def evaluate_to_differentiate(self, x: Tensor) -> Tensor:
        """The output at points, untraced, with a graph that can be differentiated twice more."""
        with twice_differentiable():
            return self.evaluate(x)

    def choose(self, traced: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
        """The traced answer, or the other where the model cannot be traced."""
        if self.route == "reverse":
            return otherwise()
        try:
            return traced()
        except (SmoothnessError, RandomModelError, torch.OutOfMemoryError):
            raise
        except Exception:
            # Whatever a model dislikes about traced values, plain tensors settle it: if the
            # mistake is its own, it is made again, and this time heard.
            if self.route == "traced":
                raise
            return otherwise()


def log_density_score(model: Model, x: Tensor, training: bool) -> Tensor:
    """The gradient of a log-density."""

    def traced() -> Tensor:
        return model.trace(x, None, Tape(x.shape[0]), int(training), "score").p

    return reverse.gradient(model.choose(traced, lambda: model.evaluate_to_differentiate(x)), x)


def log_density_curvature(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """The gradient of a log-density and its mean curvature along directions."""

    def traced() -> Pair:
        tape = pairing.Pairing(x)
        y = model.trace(x, v, tape, order=1 + training)
        if y.p.ndim == 1:
            return tape.pair(y.p)
        jet = model.trace(x, v, pairing.Jet(x.shape[0]), order=0)
        second = torch.zeros_like(y.p) if jet.s is None else jet.s.expand_as(y.p)
        return reverse.gradient(jet.p, x), second

    def otherwise() -> Pair:
        s = reverse.gradient(model.evaluate_to_differentiate(x), x)
        return s, reverse.curvature(s, x, v, training, may_be_constant=True)

    return model.choose(traced, otherwise)


def log_density_divergence(model: Model, x: Tensor, training: bool, max_memory: int | None) -> Pair:
    """The gradient of a log-density and its exact divergence."""

    def traced() -> Pair:
        survey = trace.Survey(x)
        y = model.trace(x, None, survey, order=1 + training)
        _require_repeatable(survey)
        with torch.set_grad_enabled(training):
            directions = trace.basis(x, survey)
            plan = trace.plan(x, survey, len(directions), training, max_memory)
            chunk = trace.log_density_chunk(model.call, x)
            projected, divergence = trace.accumulate(chunk, directions, plan)
        if y.p.ndim == 1 or len(directions) < dimension(x):
            return reverse.gradient(y.p, x), divergence
        return projected.movedim(0, -1).reshape(*y.p.shape, *x.shape[1:]), divergence

    def otherwise() -> Pair:
        s = reverse.gradient(model.evaluate_to_differentiate(x), x)
        return s, reverse.divergence(s, x, training, may_be_constant=True)

    return model.choose(traced, otherwise)


def jacobian(model: Model, x: Tensor, training: bool) -> Tensor:
    """The gradients of all outputs of a log-density with features, ``(N, *F, *event)``.

    By D tangents or by one reverse pass for every output, whichever is faster.
    """

    def forward() -> Tensor:
        tape = pairing.Tangents(x.shape[0])
        basis = torch.eye(d, dtype=x.dtype, device=x.device).reshape(d, 1, *x.shape[1:])
        y = model.trace(x, basis, tape, int(training), "score")
        _require_repeatable(tape)
        return _tangents_last(y).unflatten(-1, x.shape[1:])

    def backward() -> Tensor:
        return reverse.ask(lambda x: log_density_score(model, x, training), x)

    d = dimension(x)
    with torch.no_grad():
        outputs = model.evaluate(x).shape[1:].numel()
    if not x.is_cuda and d > FORWARD_COST * outputs:
        return backward()
    return model.choose(forward, backward)


def jet(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """``v.grad`` of all outputs, ``(N, *F, M)``, and their mean curvatures ``(N, *F)``.

    Raises:
        Untraceable: if the model cannot be traced.
    """
    tape = pairing.Jet(x.shape[0])
    y = model.trace(x, v, tape, order=1 + training)
    _require_repeatable(tape)
    second = torch.zeros_like(y.p) if y.s is None else y.s.expand_as(y.p)
    return _tangents_last(y), second


def _tangents_last(y: Any) -> Tensor:
    """The tangents of all directions, ``(N, *F, M)``."""
    return y.u.expand(y.u.shape[0], *y.p.shape).movedim(0, -1)


def vector_score(model: Model, x: Tensor) -> Tensor:
    """A vector field, refused where it jumps."""

    def traced() -> Tensor:
        return model.trace(x, None, Tape(x.shape[0]), 0, "score").p

    return model.choose(traced, lambda: model.evaluate(x))


def vector_curvature(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """A vector field and its mean curvature along directions, by one tangent pass."""

    def traced() -> Pair:
        y = model.trace(x, v, pairing.Tangents(x.shape[0]), order=int(training))
        return y.p, inner(v, y.u, event_axes(x)).mean(0)

    def otherwise() -> Pair:
        h = model.evaluate_to_differentiate(x)
        return h, reverse.curvature(h, x, v, training, may_be_constant=False)

    return model.choose(traced, otherwise)


def vector_divergence(model: Model, x: Tensor, training: bool, max_memory: int | None) -> Pair:
    """A vector field and its exact divergence."""

    def traced() -> Pair:
        survey = trace.Survey(x)
        y = model.trace(x, None, survey, order=int(training))
        _require_repeatable(survey)
        with torch.set_grad_enabled(training):
            directions = trace.basis(x, survey)
            plan = trace.plan(x, survey, len(directions), training, max_memory)
            chunk = trace.vector_chunk(model.call, x)
            _, divergence = trace.accumulate(chunk, directions, plan)
        return y.p, divergence

    def otherwise() -> Pair:
        h = model.evaluate_to_differentiate(x)
        return h, reverse.divergence(h, x, training, may_be_constant=False)

    return model.choose(traced, otherwise)


def approximate_divergence(model: Model, x: Tensor, training: bool) -> Pair:
    """The gradient of a log-density and its approximate divergence by a sweep of diagonals."""
    return _swept(model, x, training, sweeps.approximate_backprop)


def propagated_curvature(model: Model, x: Tensor, signs: sweeps.Signs, training: bool) -> Pair:
    """The gradient of a log-density and its divergence by a sweep of noise."""
    return _swept(model, x, training, partial(sweeps.curvature_propagation, signs=signs))


def _refuse_randomness(tape: Tape) -> None:
    if tape.random:
        raise RandomModelError(
            "the model must give the same answer at every call to be compared at moved points, "
            f"got {tape.random[0]} in training mode; call model.eval(), or use "
            "SlicedScoreMatchingVR, which evaluates the model once"
        )


def _require_repeatable(tape: Tape) -> None:
    """Give up a trace that would run a random model several times."""
    if tape.random:
        raise Untraceable(f"{tape.random[0]} in training mode")


def _swept(model: Model, x: Tensor, training: bool, sweep: Callable[..., Pair]) -> Pair:
    """A sweep, for which there is no other route: what it cannot do it says."""

    def trace(tangents: Tensor | None, tape: Tape) -> Any:
        y = model.trace(x, tangents, tape, order=1 + training)
        check_log_density(y.p, x, feature_axes=0)
        return y

    try:
        return sweep(trace, x)
    except Untraceable as error:
        model.evaluate(x)  # a model that is wrong in itself says so here
        raise ValueError(
            "the model must be made of operations that a layerwise objective has rules for, "
            f"got {error}; use SlicedScoreMatchingVR, which takes any model"
        ) from error

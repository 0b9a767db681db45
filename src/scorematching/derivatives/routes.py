"""Questions about a model, each answered by tracing or by double backward.

`trust.answer` decides which, from what the first uses of the model have shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_log_density
from scorematching._shapes import dimension, event_axes, inner
from scorematching.derivatives import double_backward
from scorematching.derivatives.engine import divergence, sweeps
from scorematching.derivatives.engine.jet import Jet, second_derivative
from scorematching.derivatives.engine.pairing import LostBatchAxis, Pairing, Tangents
from scorematching.derivatives.engine.tape import Tape
from scorematching.derivatives.engine.trace import Untraceable
from scorematching.derivatives.model import Model
from scorematching.derivatives.question import Question
from scorematching.derivatives.trust import answer, require_smooth

Pair = tuple[Tensor, Tensor]

# --------------------------------------------------------------------------- log-densities


def log_density_score(model: Model, x: Tensor, training: bool) -> Tensor:
    """The gradient of a log-density."""
    s = double_backward.gradient(model.evaluate_to_differentiate(x), x)
    if training:
        require_smooth(model, x, order=0, what="score")
    return s


def log_density_curvature(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """The gradient of a log-density and its mean curvature along directions."""
    question = Question("curvature", _by_pairing, partial(_by_double_backward, training=training))
    return answer(model, question, x, training, (v,))


def _by_pairing(model: Model, x: Tensor, v: Tensor) -> Pair:
    """By pairing; by a jet where there are several outputs or the batch axis is lost."""
    findings = model.findings
    if not findings.lost_axis:
        try:
            tape, y = model.trace(x, v, partial(Pairing, x))
            if y.p.ndim == 1:
                return tape.pair(y.p)
        except LostBatchAxis:
            findings.lost_axis = True
    return _by_jet(model, x, v)


def _by_jet(model: Model, x: Tensor, v: Tensor) -> Pair:
    _, y = model.trace(x, v, partial(Jet, x.shape[0]))
    return double_backward.gradient(y.p, x), second_derivative(y)


def _by_double_backward(model: Model, x: Tensor, v: Tensor, training: bool = True) -> Pair:
    s = double_backward.gradient(model.evaluate_to_differentiate(x), x)
    return s, double_backward.curvature(s, x, v, training, may_be_constant=True)


def log_density_divergence(model: Model, x: Tensor, training: bool, max_memory: int | None) -> Pair:
    """The gradient of a log-density and its exact divergence."""

    def traced(model: Model, x: Tensor) -> Pair:
        with divergence.same_random_numbers(x):
            survey, y = model.trace(x, None, partial(divergence.Survey, x))
        chunk = divergence.log_density_chunk(model, x)
        projected, trace, basis = _accumulate(survey, x, chunk, training, max_memory)
        if y.p.ndim == 1 or basis < dimension(x):
            return double_backward.gradient(y.p, x), trace
        return projected.movedim(0, -1).reshape(*y.p.shape, *x.shape[1:]), trace

    def reverse(model: Model, x: Tensor) -> Pair:
        s = double_backward.gradient(model.evaluate_to_differentiate(x), x)
        return s, double_backward.divergence(s, x, training, may_be_constant=True)

    question = Question("divergence", traced, reverse, _by_jet, _by_double_backward)
    return answer(model, question, x, training)


def _accumulate(
    survey: divergence.Survey, x: Tensor, chunk: Any, training: bool, max_memory: int | None
) -> tuple[Tensor, Tensor, int]:
    """Projected scores, the divergence, and how many directions they took."""
    # A region under no_grad inside the model can be told apart only while autograd records.
    with torch.set_grad_enabled(training or survey.cut):
        directions = divergence.basis(x, survey)
        plan = divergence.plan(x, survey, len(directions), training, max_memory)
        projected, trace = divergence.accumulate(chunk, directions, plan, x)
    return projected, trace, len(directions)


# ------------------------------------------------------------------------------- features


FORWARD_COST = 2
"""Time of a tangent pass relative to a reverse pass, on a CPU, for choosing between the two.

A GPU carries all tangents in parallel, but takes reverse passes one after the other.
"""


def jacobian(model: Model, x: Tensor, training: bool) -> Tensor:
    """The gradients of all outputs of a log-density with features, ``(N, *F, *event)``.

    By D tangents or by one reverse pass for every output, whichever is faster.
    """
    d = dimension(x)
    with torch.no_grad():
        outputs = model.evaluate(x).shape[1:].numel()
    if not x.is_cuda and d > FORWARD_COST * outputs:
        return log_density_score(model, x, training)
    basis = torch.eye(d, dtype=x.dtype, device=x.device).reshape(d, 1, *x.shape[1:])
    question = Question("slice", _by_features, partial(_sliced_backward, training=training))
    projected, _ = answer(model, question, x, training, (basis,), verified=False)
    return projected.unflatten(-1, x.shape[1:])


def features_slice(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """``v.grad`` of all outputs, ``(N, *F, M)``, and their mean curvatures ``(N, *F)``."""
    reverse = partial(_sliced_backward, training=training)
    question = Question("slice", _by_features, reverse, _by_jet, _by_double_backward)
    return answer(model, question, x, training, (v,))


def features_curvature(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """The gradients of all outputs, ``(N, *F, *event)``, and their mean curvatures ``(N, *F)``."""
    return jacobian(model, x, training), features_slice(model, x, v, training)[1]


def _by_features(model: Model, x: Tensor, v: Tensor) -> Pair:
    _, y = model.trace(x, v, partial(Jet, x.shape[0]))
    return y.u.expand(len(v), *y.p.shape).movedim(0, -1), second_derivative(y)


def _sliced_backward(model: Model, x: Tensor, v: Tensor, training: bool = True) -> Pair:
    v = v.expand(len(v), *x.shape)
    s, curvature = _by_double_backward(model, x, v, training)
    axes = event_axes(x)
    flat, along = s.flatten(s.ndim - axes), v.flatten(2)
    return torch.einsum("n...d,mnd->n...m", flat, along), curvature


# --------------------------------------------------------------------------- vector fields


def vector_score(model: Model, x: Tensor) -> Tensor:
    """A vector field, refused where it jumps."""
    h = model.evaluate(x)
    require_smooth(model, x, order=0, what="score")
    return h


def vector_curvature(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """A vector field and its mean curvature along directions, by one tangent pass."""
    reverse = partial(_vector_by_double_backward, training=training)
    return answer(model, Question("curvature", _by_tangents, reverse), x, training, (v,))


def _by_tangents(model: Model, x: Tensor, v: Tensor) -> Pair:
    _, y = model.trace(x, v, partial(Tangents, x.shape[0]))
    return y.p, inner(v, y.u, event_axes(x)).mean(0)


def _vector_by_double_backward(model: Model, x: Tensor, v: Tensor, training: bool = True) -> Pair:
    h = model.evaluate_to_differentiate(x)
    return h, double_backward.curvature(h, x, v, training, may_be_constant=False)


def vector_divergence(model: Model, x: Tensor, training: bool, max_memory: int | None) -> Pair:
    """A vector field and its exact divergence."""

    def traced(model: Model, x: Tensor) -> Pair:
        with divergence.same_random_numbers(x):
            survey, y = model.trace(x, None, partial(divergence.Survey, x))
        chunk = divergence.vector_chunk(model, x)
        return y.p, _accumulate(survey, x, chunk, training, max_memory)[1]

    def reverse(model: Model, x: Tensor) -> Pair:
        h = model.evaluate_to_differentiate(x)
        return h, double_backward.divergence(h, x, training, may_be_constant=False)

    question = Question("divergence", traced, reverse, _by_tangents, _vector_by_double_backward)
    return answer(model, question, x, training)


# ---------------------------------------------------------------------- layerwise baselines


def approximate_divergence(model: Model, x: Tensor, training: bool) -> Pair:
    """The gradient of a log-density and its approximate divergence by a sweep of diagonals."""
    return _swept(model, x, training, sweeps.approximate_backprop)


def propagated_curvature(model: Model, x: Tensor, signs: sweeps.Signs, training: bool) -> Pair:
    """The gradient of a log-density and its divergence by a sweep of noise."""
    return _swept(model, x, training, partial(sweeps.curvature_propagation, signs=signs))


def _swept(model: Model, x: Tensor, training: bool, sweep: Callable[..., Pair]) -> Pair:
    """A sweep over the model's operations; there is no other route."""

    def trace(tangents: Tensor | None, make: Callable[..., Tape]) -> Any:
        tape, y = model.trace(x, tangents, make)
        check_log_density(y.p, x, feature_axes=0)
        return tape, y

    try:
        result = sweep(trace, x)
    except Untraceable as error:
        model.evaluate(x)  # raises where the model itself is wrong
        raise ValueError(
            "the model must be made of operations that a layerwise objective has rules for, "
            f"got {error}; use SlicedScoreMatchingVR, which takes any model"
        ) from error
    require_smooth(model, x, order=int(training), what="curvature")
    return result

"""Questions about a model, each answered by tracing or by double backward.

`trust.answer` decides which, from what the first uses of the model have shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_log_density
from scorematching._directions import plain
from scorematching._shapes import dimension, event_axes, inner, project
from scorematching.derivatives import double_backward
from scorematching.derivatives.engine import divergence, sweeps
from scorematching.derivatives.engine.jet import Jet, second_derivative
from scorematching.derivatives.engine.pairing import LostBatchAxis, Pairing, Tangents
from scorematching.derivatives.engine.tape import Tape
from scorematching.derivatives.engine.trace import Untraceable
from scorematching.derivatives.evaluations import refuse_nan
from scorematching.derivatives.memory import counted
from scorematching.derivatives.model import Model, Pair, Question
from scorematching.derivatives.trust import answer, require_smooth, require_traced
from scorematching.derivatives.verification import is_due

# ----------------------------------------------------- scores of log-densities and vector fields


def score(model: Model, x: Tensor, training: bool) -> Tensor:
    """The gradient of a log-density, or a vector field itself; refused where it jumps."""
    s = model.score(x) if model.is_log_density else model.evaluate(x)
    if training:
        density, findings = model.is_log_density, model.findings
        with counted(findings.uses, "score") as uses:
            refuse_nan(model, x, findings, wait=is_due(uses), supported=False)
            # Other answers are compared with differences, which show a score that is cut.
            require_smooth(model, x, order=0, what="score", differentiates=density, trained=True)
    return s


def score_and_curvature(model: Model, x: Tensor, v: Tensor, training: bool) -> Pair:
    """The score and its mean curvature along directions."""
    return answer(model, _ask_curvature(model.is_log_density, training), x, training, (v,))


@cache
def _ask_curvature(is_log_density: bool, training: bool) -> Question:
    traced = _by_pairing if is_log_density else _by_tangents
    return Question("curvature", traced, partial(_by_double_backward, training=training))


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


def _by_tangents(model: Model, x: Tensor, v: Tensor) -> Pair:
    """A vector field by one tangent pass."""
    _, y = model.trace(x, v, partial(Tangents, x.shape[0]))
    return y.p, inner(plain(v), y.u, event_axes(x)).mean(0)


def _by_double_backward(model: Model, x: Tensor, v: Tensor, training: bool = True) -> Pair:
    s = model.score(x)
    return s, double_backward.curvature(s, x, v, training, model.is_log_density)


def score_and_divergence(model: Model, x: Tensor, training: bool, max_memory: int | None) -> Pair:
    """The score and its exact divergence."""

    def traced(model: Model, x: Tensor) -> Pair:
        with divergence.same_random_numbers(x):
            survey, y = model.trace(x, None, partial(divergence.Survey, x))
        # A region under no_grad inside the model can be told apart only while autograd records.
        with torch.set_grad_enabled(training or survey.cut):
            directions = divergence.basis(x, survey)
            plan = divergence.plan(x, survey, len(directions), training, max_memory)
            projected, trace = divergence.accumulate(chunk(model, x), directions, plan, x)
        if not model.is_log_density:
            return y.p, trace
        if y.p.ndim == 1 or len(directions) < dimension(x):
            return double_backward.gradient(y.p, x), trace
        return projected.movedim(0, -1).reshape(*y.p.shape, *x.shape[1:]), trace

    def reverse(model: Model, x: Tensor) -> Pair:
        s = model.score(x)
        return s, double_backward.divergence(s, x, training, model.is_log_density)

    chunk, probe = divergence.vector_chunk, _by_tangents
    if model.is_log_density:
        chunk, probe = divergence.log_density_chunk, _by_jet
    question = Question("divergence", traced, reverse, probe, _by_double_backward)
    return answer(model, question, x, training)


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
        return score(model, x, training)
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
    return project(s, v), curvature


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
    findings = model.findings
    with counted(findings.uses, "sweep") as uses:
        refuse_nan(model, x, findings, wait=is_due(uses))
        require_smooth(model, x, order=int(training), what="curvature")
        if is_due(uses):
            require_traced(model, _CURVATURE, x)
    return result


_CURVATURE = Question("sweep", _by_pairing, partial(_by_double_backward, training=False))
"""What is compared where the answer itself, an estimate, cannot be."""

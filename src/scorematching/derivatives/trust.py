"""Answers that are checked: which route a model takes, and whether it is right.

The first uses of a model decide. What cannot be traced, or is traced to a wrong answer, goes by
double backward from then on, with one `PerformanceWarning`; where no route agrees with finite
differences `WrongDerivativeError` is raised. Whether a model is smooth enough is measured once
(`smoothness`). Nothing is measured while a step is captured or compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values
from scorematching.derivatives import exceptional, smoothness, speed, verification
from scorematching.derivatives.evaluations import (
    few_points,
    refuse_nan,
    require_finite,
    require_usable,
    score_of,
    value_at,
)
from scorematching.derivatives.memory import Findings, counted
from scorematching.derivatives.model import Model, Pair, Question, RandomModelError, Way
from scorematching.derivatives.notices import describe, exceptional_points, warn
from scorematching.derivatives.ops.registry import has_kink
from scorematching.errors import SmoothnessError, WrongDerivativeError


def answer(
    model: Model,
    question: Question,
    x: Tensor,
    training: bool,
    arguments: tuple[Any, ...] = (),
    verified: bool = True,
) -> Pair:
    """The answer at points, by the route decided for this question.

    The first checks come before, so that what they change in a model (a counter in a buffer, say)
    is put back before the graph of the answer is built. Later ones take the answer itself.
    ``verified=False`` leaves them to other questions.
    """
    with counted(model.findings.uses, question.name) as uses:
        return _answer(model, question, x, training, arguments, verified, uses)


def _answer(
    model: Model,
    question: Question,
    x: Tensor,
    training: bool,
    arguments: tuple[Any, ...],
    verified: bool,
    uses: int,
) -> Pair:
    """The answer at a use, of which `answer` counts the number."""
    findings = model.findings
    before = findings.met
    require_smooth(model, x, order=int(training), what="curvature")
    due = verified and _is_checked(model) and verification.is_due(uses) and can_read_values(x)
    after = due and uses > 2 and _can_be_confirmed(model, question, findings)
    if due and not after:
        _verify(model, question, x, training, findings)
    elif uses == 3 and model.route == "auto" and speed.may_be_slow(findings) and can_read_values(x):
        speed.choose_faster(model, question, x, arguments, findings)
    if _route(model, question, findings) == "traced":
        score, second = _traced_or_not(model, question, x, arguments, findings)
        refuse_nan(model, x, findings, wait=due)
        if _has_new_kinks(findings, before):
            findings.smoothness = None
        if findings.smoothness is None:  # the model has changed
            require_smooth(model, x, order=int(training), what="curvature")
        if after and not _is_confirmed(model, question, x, arguments, (score, second), findings):
            _verify(model, question, x, training, findings)
            if _route(model, question, findings) != "traced":
                score, second = question.reverse(model, x, *arguments)
    else:
        if findings.smoothness is None:
            require_smooth(model, x, order=int(training), what="curvature")
        score, second = question.reverse(model, x, *arguments)
        refuse_nan(model, x, findings, wait=due)
    warn(findings)
    return score, model.touch_parameters(second)


def _is_checked(model: Model) -> bool:
    """Whether answers are checked: where the route is not imposed, or by double backward."""
    return model.route == "auto" or (model.route == "reverse" and model.check_smoothness)


def _route(model: Model, question: Question, findings: Findings) -> str:
    return model.route if model.route != "auto" else findings.routes.get(question.name, "traced")


def _traced_or_not(
    model: Model, question: Question, x: Tensor, arguments: Any, findings: Findings
) -> Pair:
    first = findings.uses[question.name] == 1
    kept = [(b, b.data.clone()) for b in verification.buffers_of(model.call)] if first else []
    try:
        return question.traced(model, x, *arguments)
    except (SmoothnessError, RandomModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if model.route == "traced":
            raise
        for buffer, data in kept:
            buffer.data = data
        # Evaluate the model on plain tensors; errors in the user's code are raised again there.
        result = question.reverse(model, x, *arguments)
        _note_obstacle(findings, question, error)
        return result


def _note_obstacle(findings: Findings, question: Question, error: Exception) -> None:
    findings.obstacle = describe(error)
    if findings.kinks is not None:  # it was traced before, so it has changed
        findings.smoothness = None
    _take_double_backward(findings, question, f"cannot be traced ({findings.obstacle})")


def _take_double_backward(findings: Findings, question: Question, reason: str) -> None:
    """Decide for the slow route; `warn` says so after the answer was checked."""
    findings.routes[question.name] = "reverse"
    findings.reason = findings.reason or reason


# -------------------------------------------------------------------------------- checks


def require_smooth(
    model: Model,
    x: Tensor,
    order: int,
    what: str,
    differentiates: bool = True,
    trained: bool = False,
) -> None:
    """Refuse a model whose score is not C^order near the points; measured once and remembered.

    A refusal is measured anew: the layer at fault may have been replaced.

    Raises:
        SmoothnessError: with the operation at fault, where it is known.
        WrongDerivativeError: if it is differentiated although part of it is cut from the graph, or
            ``trained`` on although its score is.
    """
    if not model.check_smoothness:
        return

    def require(measured: smoothness.Measurement) -> None:
        smoothness.require(measured, order, what, model.kind)
        if differentiates:
            smoothness.require_whole(measured, model.kind)
        if trained:
            smoothness.require_trainable(measured)

    findings = model.findings
    if findings.smoothness is not None and not _measures_again(model, findings, len(x)):
        try:
            return require(findings.smoothness)
        except (SmoothnessError, WrongDerivativeError):
            if not can_read_values(x):
                raise
    if can_read_values(x):
        _measure(model, x, findings)
        require(findings.smoothness)


def _measure(model: Model, x: Tensor, findings: Findings) -> None:
    """Measure smoothness at points, and remember it."""
    require_usable(model, x)
    measured = smoothness.measure(model.call, x.detach(), model.kind)
    if measured.cut:
        few_points(model, x, findings)  # raises where values change from call to call
    findings.smoothness = measured
    findings.measured_points = len(x)
    findings.layers.keep(model.call)


def _measures_again(model: Model, findings: Findings, points: int) -> bool:
    """Whether smoothness is measured once more, because points, weights or layers have changed.

    When a layer is new; at the 1024th, 2048th, 4096th ... use; and when many points come after few,
    which say little about where a model is used. At the 16th and 128th use, too, for a model with
    operations that can have kinks, of which none was found near the first points, and for one that
    was measured at few points.
    """
    uses = findings.uses.total()
    if uses >= 1024 and uses & (uses - 1) == 0:
        return True
    few = findings.measured_points < smoothness.FEW_POINTS
    if (few and points >= smoothness.FEW_POINTS) or findings.layers.have_new(model.call):
        return True
    return uses in (16, 128) and (few or any(has_kink(name) for name, _ in findings.operations))


def _has_new_kinks(findings: Findings, before: Sequence[tuple[str, str]]) -> bool:
    """Whether the last trace met operations with kinks that no other did: a new layer, say.

    ``before`` are the operations of the trace before this use; the first one has nothing to be
    compared with.
    """
    known = findings.kinks
    if known is not None and findings.met == before:
        return False
    kinks = {name for name, _ in findings.met if has_kink(name)}
    findings.kinks = kinks | (known or set())
    return known is not None and not kinks <= known


def _verify(
    model: Model, question: Question, x: Tensor, training: bool, findings: Findings
) -> None:
    """Compare the route in use with another, and change it where it is wrong."""
    points = few_points(model, x, findings)
    v = verification.fixed_signs(points, seed=1)[None]
    trained = training and findings.uses[question.name] <= 2
    model = _one_output(model, points, findings)

    def by(way: Way) -> Callable[[Tensor, Tensor], Pair]:
        def ask(x: Tensor, v: Tensor) -> Pair:
            with verification.undone(model.call, x):
                return way(model, x if x.requires_grad else x.detach().requires_grad_(), v)

        return ask

    traced = by(question.probe or question.traced)
    reverse = by(question.probe_reverse or question.reverse)

    def either(x: Tensor, v: Tensor) -> Pair:
        """As the answer itself, which takes double backward where points cannot be traced."""
        return _try(traced, x, v) or reverse(x, v)

    if _route(model, question, findings) == "traced":
        try:
            found = _detached(traced(points, v))
        except Exception as error:
            _detached(reverse(points, v))  # raises where the model itself is wrong
            _note_obstacle(findings, question, error)
        else:
            require_finite(model, found[0], points)
            if _agrees(model, traced, found, _try(reverse, points, v), points, v, trained):
                return _require_ordinary(model, either, found, points, v, x)
            names = _suspects(model.findings) or "one of its operations"
            _take_double_backward(findings, question, f"is traced to a wrong answer by {names}")
    found = _detached(reverse(points, v))
    require_finite(model, found[0], points)
    if not _agrees(model, reverse, found, None, points, v, trained):
        raise WrongDerivativeError(
            f"the derivatives of this {model.kind} disagree with finite differences by every "
            "route: part of it cannot be differentiated twice (a custom autograd function whose "
            "backward pass is not differentiable, such as odeint_adjoint, a value cut from the "
            "graph, or nn.utils.spectral_norm before its power iteration converges); use "
            "operations that torch differentiates twice (odeint instead of odeint_adjoint, "
            "nn.utils.parametrizations.spectral_norm), or FiniteDifferenceSSM, which needs no "
            "second derivative"
        )
    _require_ordinary(model, reverse, found, points, v, x)


def require_traced(model: Model, question: Question, x: Tensor) -> None:
    """Require right traced derivatives at a few points, for answers that have no other route.

    Nothing is required of models that take batches of one size only.

    Raises:
        WrongDerivativeError: if they are wrong there.
    """
    findings = model.findings
    if model.route != "auto" or not can_read_values(x):
        return
    if len(few_points(model, x, findings)) > verification.NUM_POINTS:
        return
    _verify(model, question, x, False, findings)
    if _route(model, question, findings) != "traced":
        raise WrongDerivativeError(
            f"the operations of this {model.kind} must have right derivatives for a layerwise "
            f"objective, got a curvature that {findings.reason}; use SlicedScoreMatchingVR, which "
            "takes them by double backward"
        )


def _require_ordinary(
    model: Model,
    ask: Callable[[Tensor, Tensor], Pair],
    found: Pair,
    x: Tensor,
    v: Tensor,
    batch: Tensor,
) -> None:
    """Refuse derivatives that are others at the points than right beside them.

    ``found`` is the answer at a few points x of the batch; others are looked at after them.
    """
    if not model.check_smoothness:
        return
    value, density = partial(value_at, model), model.is_log_density
    differs = exceptional.is_exceptional(ask, found, x, v, value, density)
    if not differs and len(x) < len(batch):
        x = exceptional.special_rows(batch.detach())
        v = verification.fixed_signs(x, seed=1)[None]
        answer = _try(ask, x, v)
        differs = bool(answer) and exceptional.is_exceptional(ask, answer, x, v, value, density)
    if differs:
        raise exceptional_points(model.kind)


def _can_be_confirmed(model: Model, question: Question, findings: Findings) -> bool:
    """Whether double backward at a few points may be compared with a traced answer at all."""
    if _route(model, question, findings) != "traced":
        return False
    simple = question.probe is None and findings.outputs == 1 and bool(findings.any_batch)
    return simple and model.check_smoothness and not verification.buffers_of(model.call)


def _is_confirmed(
    model: Model, question: Question, x: Tensor, arguments: Any, found: Pair, findings: Findings
) -> bool:
    """Whether a traced answer agrees with double backward at a few of its own points.

    Half the price of `_verify`, which decides where this disagrees (models with dropout always do).
    """
    few = slice(verification.NUM_POINTS)
    own, v = x.detach()[few].requires_grad_(), arguments[0].detach().as_subclass(Tensor)[:, few]
    mine = found[0].detach()[few], found[1].detach()[few]
    if _route(model, question, findings) != "traced" or not bool(mine[0].isfinite().all()):
        return False
    with verification.undone(model.call, x):
        other = _try(partial(question.reverse, model), own, v)
    return bool(other) and verification.compare(mine, other, own.detach(), v).agree


def _one_output(model: Model, x: Tensor, findings: Findings) -> Model:
    """A model with features as a random combination of them, which is cheaper to check."""
    # Counted anew at every check: a closure may return more features than the one before.
    findings.outputs = value_at(model, x).shape[1:].numel() if model.is_log_density else 1
    if findings.outputs == 1:
        return model
    weights = torch.randn(findings.outputs, generator=torch.Generator().manual_seed(3)).to(x)

    def combined(x: Tensor) -> Tensor:
        return model.call(x).flatten(1) @ weights

    return replace(model, call=combined, check=lambda y, x: None)


def _agrees(
    model: Model,
    ask: Callable[[Tensor, Tensor], Pair],
    found: Pair,
    other: Any,
    x: Tensor,
    v: Tensor,
    trained: bool,
) -> bool:
    """Whether an answer agrees with that of another route, or else with finite differences.

    ``other`` is empty where the other route failed, and None where there is none.
    """

    def agrees(slack: verification.Slack) -> bool:
        same = bool(other) and verification.compare(found, other, x, v, slack).agree
        if model.check_smoothness:
            return same or verification.agrees_with_differences(score_of(model), found, x, v, slack)
        if not same and other is not None:
            return False
        return verification.agrees_between_kinks(model.call, model.is_log_density, found[1], x, v)

    if not agrees(verification.NO_SLACK):
        slack = verification.rounding(lambda x, v: _detached(ask(x, v)), found, x, v)
        if not agrees(slack):
            return False
    return not (trained and model.check_smoothness) or verification.check_gradient(ask, x, v).agree


def _try(ask: Callable[[Tensor, Tensor], Pair], x: Tensor, v: Tensor) -> Any:
    """An answer by a route that may not exist for this model, or not at these points."""
    try:
        return _detached(ask(x, v))
    except Exception:
        return ()


def _detached(pair: Pair) -> Pair:
    return pair[0].detach(), pair[1].detach()


def _suspects(findings: Findings) -> str:
    """The operations of the last trace without a closed rule, or else all of them."""
    unsure = ("nested jvp", "decomposed", "no rule")
    names = [name for name, kind in findings.met if kind in unsure]
    return ", ".join(dict.fromkeys(names or [name for name, _ in findings.met]))

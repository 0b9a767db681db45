"""Answers that are checked: which route a model takes, and whether it is right.

The first uses of a model decide. What cannot be traced, or is traced to a wrong answer, goes by
double backward from then on, with one `PerformanceWarning`; where no route agrees with finite
differences `WrongDerivativeError` is raised. Whether a model is smooth enough is measured once
(`smoothness`). Nothing is measured while a step is captured or compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import can_read_values
from scorematching.derivatives import smoothness, verification
from scorematching.derivatives.engine.trace import Untraceable
from scorematching.derivatives.memory import Findings
from scorematching.derivatives.model import Model, RandomModelError
from scorematching.errors import PerformanceWarning, SmoothnessError, WrongDerivativeError

Pair = tuple[Tensor, Tensor]
Way = Callable[..., Pair]
"""``(model, x, *arguments) -> (score, curvature or divergence)``."""


@dataclass(frozen=True)
class Question:
    """A question with two ways to answer it.

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


def answer(
    model: Model,
    question: Question,
    x: Tensor,
    training: bool,
    arguments: tuple[Any, ...] = (),
    verified: bool = True,
) -> Pair:
    """The answer at points, by the route decided for this question, checked unless told not to."""
    findings = model.findings
    route = model.route if model.route != "auto" else findings.routes.get(question.name, "traced")
    if route == "traced":
        result = _traced_or_not(model, question, x, arguments, findings)
    else:
        result = question.reverse(model, x, *arguments)
    findings.uses[question.name] += 1
    result = result[0], model.touch_parameters(result[1])
    if not can_read_values(x):
        return result
    require_smooth(model, x, order=int(training), what="curvature")
    if verified and model.route == "auto" and verification.is_due(findings.uses[question.name]):
        before = findings.routes.get(question.name)
        _verify(model, question, x, training, findings)
        if findings.routes.get(question.name) != before:
            result = question.reverse(model, x, *arguments)
    _warn(findings)
    return result


def _traced_or_not(
    model: Model, question: Question, x: Tensor, arguments: Any, findings: Findings
) -> Pair:
    try:
        return question.traced(model, x, *arguments)
    except (SmoothnessError, RandomModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if model.route == "traced":
            raise
        # Evaluate the model on plain tensors; errors in the user's code are raised again there.
        result = question.reverse(model, x, *arguments)
        findings.obstacle = _describe(error)
        _take_double_backward(findings, question, f"cannot be traced ({findings.obstacle})")
        return result


def _take_double_backward(findings: Findings, question: Question, reason: str) -> None:
    """Decide for the slow route; `_warn` says so after the answer was checked."""
    findings.routes[question.name] = "reverse"
    findings.reason = findings.reason or reason


def _warn(findings: Findings) -> None:
    """Warn once for each model and mode that takes the slow route."""
    if findings.reason is not None and not findings.warned:
        findings.warned = True
        warnings.warn(
            f"this model {findings.reason}; its derivatives are taken by double backward, which is "
            "right but slower. sm.explain(model, x) lists its operations: write that part with "
            "other torch operations, or accept this route with LogDensityField(model, "
            'route="reverse")',
            PerformanceWarning,
            stacklevel=2,
        )


def _describe(error: Exception) -> str:
    """What stopped a trace, and the line of the user's code that did."""
    text = str(error).split("\n")[0][:200] or type(error).__name__
    place, frame = "", error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_globals.get("__name__", "")
        if name and name.split(".")[0] not in ("torch", "scorematching", "contextlib"):
            place = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.tb_lineno}"
        frame = frame.tb_next
    kind = "" if isinstance(error, Untraceable) else f"{type(error).__name__}: "
    return f"{kind}{text}, at {place}" if place else f"{kind}{text}"


# -------------------------------------------------------------------------------- checks


def require_smooth(model: Model, x: Tensor, order: int, what: str) -> None:
    """Refuse a model whose score is not C^order near the points; measured once and remembered.

    Raises:
        SmoothnessError: with the operation at fault, where it is known.
    """
    if not model.check_smoothness or not can_read_values(x):
        return
    findings = model.findings
    if findings.smoothness is None:
        findings.smoothness = smoothness.measure(model.call, x.detach(), model.kind)
    smoothness.require(findings.smoothness, order, f"the {what} of a {model.kind}")


def _verify(
    model: Model, question: Question, x: Tensor, training: bool, findings: Findings
) -> None:
    """Compare the route in use with another, and change it where it is wrong."""
    probe = question.probe or question.traced
    reverse = question.probe_reverse or question.reverse
    points = _few(model, x, findings)
    v = _signs(points)
    with verification.replayed(model.call, points) as rewind:

        def by(way: Way) -> Callable[[Tensor, Tensor], Pair]:
            def ask(x: Tensor, v: Tensor) -> Pair:
                rewind()
                return way(model, x if x.requires_grad else x.detach().requires_grad_(), v)

            return ask

        if findings.routes.get(question.name, "traced") == "traced":
            if not _is_right(by(probe), by(reverse), points, v, training, findings, question):
                if not _is_right(by(reverse), None, points, v, training, findings, question):
                    raise _wrong(model, findings)
                names = _suspects(findings) or "one of its operations"
                _take_double_backward(findings, question, f"is traced to a wrong answer by {names}")
        elif not _is_right(by(reverse), None, points, v, training, findings, question):
            raise _wrong(model, findings)


def _is_right(
    ask: Callable[[Tensor, Tensor], Pair],
    other: Callable[[Tensor, Tensor], Pair] | None,
    x: Tensor,
    v: Tensor,
    training: bool,
    findings: Findings,
    question: Question,
) -> bool:
    """Whether an answer agrees with another route or with finite differences."""
    found = _detached(ask(x, v))
    agrees = other is not None and verification.compare(found, _try(other, x, v), x, v).agree
    if not agrees and not verification.agrees_with_differences(ask, found, x, v):
        return False
    if training and findings.uses[question.name] <= 2:
        return verification.check_gradient(ask, x, v).agree
    return True


def _try(ask: Callable[[Tensor, Tensor], Pair], x: Tensor, v: Tensor) -> Any:
    """An answer by a route that may not exist for this model."""
    try:
        return _detached(ask(x, v))
    except RuntimeError:
        return ()


def _detached(pair: Pair) -> Pair:
    return pair[0].detach(), pair[1].detach()


def _few(model: Model, x: Tensor, findings: Findings) -> Tensor:
    """A few points, or all where the model takes only batches of their number."""
    few = x.detach()[: verification.NUM_POINTS]
    if findings.any_batch is None:
        findings.any_batch = len(few) < len(x) and _takes(model, x.detach(), few)
    return few if findings.any_batch else x.detach()


@torch.no_grad()
def _takes(model: Model, x: Tensor, few: Tensor) -> bool:
    """Whether a model takes a smaller batch.

    Raises:
        ValueError: if its values there are others, because it couples the points of a batch.
    """
    with verification.replayed(model.call, x) as rewind:
        try:
            whole = model.evaluate_to_compare(x)
            rewind()
            part = model.evaluate_to_compare(few)
        except Exception:
            return False
    if verification.differ(part, whole[: len(few)]):
        raise ValueError(
            "the model must treat every point by itself, got values that change with the other "
            "points of the batch (batch normalisation in training mode?); call model.eval(), or "
            "use LayerNorm or GroupNorm"
        )
    return True


def _signs(x: Tensor) -> Tensor:
    """One direction of signs per point, the same at every check."""
    generator = torch.Generator().manual_seed(1)
    signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    return signs.to(x)[None]


def _suspects(findings: Findings) -> str:
    """The operations of the last trace that have no closed rule."""
    names = [name for (name, kind), _ in findings.operations.items() if kind in _UNSURE]
    return ", ".join(dict.fromkeys(names))


_UNSURE = ("nested jvp", "decomposed", "no rule")


def _wrong(model: Model, findings: Findings) -> WrongDerivativeError:
    return WrongDerivativeError(
        f"the derivatives of this {model.kind} disagree with finite differences by every route: "
        "part of it cannot be differentiated twice (a custom autograd function whose backward "
        "pass is not differentiable, such as odeint_adjoint, or a value cut from the graph); use "
        "operations that torch differentiates twice (odeint instead of odeint_adjoint), or "
        "FiniteDifferenceSSM, which needs no second derivative"
    )

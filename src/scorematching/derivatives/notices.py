"""What users are told about the route of a model."""

from __future__ import annotations

import sys
import warnings

from scorematching.derivatives.engine.trace import Untraceable
from scorematching.derivatives.memory import Findings
from scorematching.errors import PerformanceWarning, WrongDerivativeError


def warn(findings: Findings) -> None:
    """Warn once for each model and mode that takes the slow route."""
    if findings.reason is not None and not findings.warned:
        findings.warned = True
        warnings.warn(
            f"this model {findings.reason}; its derivatives are taken by double backward, which is "
            "right but slower. sm.explain(model, x) lists its operations: write that part with "
            "other torch operations, or accept this route with LogDensityField(model, "
            'route="reverse")',
            PerformanceWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The stack level of the first frame outside this package, for a warning that points there."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(PACKAGES):
        level, frame = level + 1, frame.f_back
    return level


PACKAGES = ("scorematching", "torch", "contextlib")


def describe(error: Exception) -> str:
    """What stopped a trace, and the line of the user's code that did."""
    text = str(error).split("\n")[0][:200] or type(error).__name__
    place, frame = "", error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_globals.get("__name__", "")
        if name and name.split(".")[0] not in PACKAGES:
            place = f"{frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.tb_lineno}"
        frame = frame.tb_next
    kind = "" if isinstance(error, Untraceable) else f"{type(error).__name__}: "
    return f"{kind}{text}, at {place}" if place else f"{kind}{text}"


def exceptional_points(kind: str) -> WrongDerivativeError:
    """The error for derivatives that torch defines by convention, exactly where points lie."""
    masks = "; a score network that takes zeros for padding must mask them in all that it reads"
    more = "" if kind == "log-density" else masks
    return WrongDerivativeError(
        f"the derivatives of this {kind} must be at the points as they are right beside them, got "
        "others: points lie where torch defines a derivative by convention (that of abs, sign, "
        "max, clamp or a comparison, at a coordinate of zero or at ties), which is wrong for this "
        "smooth function, or where it is NaN (that of sinc or a division at zero); write it "
        "without that operation (square, softplus, logsumexp; z + softplus(-2 z) - log(2) is "
        f"log(cosh(z))), or add a little noise to the points{more}"
    )


def other_values(changes: bool) -> ValueError:
    """The error for a model whose values at some points are others than in a larger batch.

    Args:
        changes: whether its values at the same points differ from call to call.
    """
    if changes:
        return ValueError(
            "the model must give the same values at every call with the same points, got values "
            "that change from call to call (a counter or another attribute that the forward pass "
            "changes?); change it in the training loop, between the losses, or keep it in a buffer "
            "of the module (register_buffer), which the checks put back"
        )
    return ValueError(
        "the model must treat every point by itself, got values that change with the other "
        "points of the batch (batch normalisation in training mode, a recurrent layer or "
        "attention without batch_first=True, or an ODE solver that chooses its steps for the whole "
        "batch?); call model.eval(), use LayerNorm or GroupNorm, put the points first, or lower "
        "the tolerances of the solver, 1e-5 in single precision and 1e-7 in double"
    )


def own_weights() -> ValueError:
    """The error for a model that sets its weights by the points it is first called with."""
    return ValueError(
        "the model must have its weights before a loss is taken, got one that sets them from the "
        "points it is first called with (ActNorm, weights that depend on data?); call it once "
        "before, in training mode, with torch.no_grad(): model(x)"
    )

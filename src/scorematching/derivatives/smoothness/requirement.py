"""How smooth a score has to be, and what to do where it is not.

Score matching integrates by parts, and its parameter gradient differentiates under the integral:
both need derivatives that exist everywhere, not almost everywhere. A ReLU log-density gives a
loss with no curvature in it and a gradient of zero; an ELU gives the right loss and a gradient
that can have the wrong sign, without an error.

=======================  ============================================
question                 the score has to be
=======================  ============================================
score, to train          continuous
curvature or divergence  C1 to train, continuous to evaluate
=======================  ============================================
"""

from __future__ import annotations

from scorematching.derivatives.smoothness.measure import Measurement
from scorematching.errors import SmoothnessError, WrongDerivativeError

SMOOTH_ACTIVATIONS = "use softplus, SiLU, GELU or tanh there"
ADVICE = (
    ("relu elu celu selu hardswish hardtanh hardsigmoid softsign threshold", SMOOTH_ACTIVATIONS),
    ("abs norm l1_loss", "use sqrt(z^2 + eps) there, with a bend that many points fall into"),
    ("sqrt pow", "add a positive constant under the root, so that many points fall into its bend"),
    ("max min sort topk median quantile cummax kthvalue", "use logsumexp there"),
    ("clamp clip", "use a smooth bound such as softplus or tanh there"),
    ("where gt ge lt le masked_fill", "join the branches with equal derivatives there"),
    ("grid_sample interpolate", "use a bicubic interpolation there"),
    ("floor ceil round trunc remainder bucketize searchsorted", "use a smooth function there"),
    ("huber_loss smooth_l1_loss", "use log(cosh(z)) there"),
)
"""What to do about operations whose names contain one of the words."""


def require(measurement: Measurement, order: int, what: str, kind: str) -> None:
    """Raise `SmoothnessError` where a score is less smooth than C^order.

    Args:
        measurement: how smooth it is.
        order: 0 where the score must be continuous, 1 where its derivative must be as well.
        what: the answer that needs it, "curvature", say.
        kind: "log-density" or "vector field".

    Raises:
        SmoothnessError: if it is less smooth.
        WrongDerivativeError: if the precision of the points is too low to tell.
    """
    if measurement.unresolved:
        raise _unresolved(measurement)
    if measurement.order >= order:
        return
    wanted = "continuous" if order == 0 else "continuously differentiable"
    raise SmoothnessError(
        f"the score of the model must be {wanted} for the {what} of a {kind}, got "
        f"a kink near the points: {measurement}. The loss or its gradient would be silently wrong; "
        f"{_advice(measurement)}, or switch this check off with LogDensityField(model, "
        "check_smoothness=False) or the same of VectorField"
    )


def _unresolved(measurement: Measurement) -> WrongDerivativeError:
    """The error for numbers whose last digit is a large part of a phase, say."""
    return WrongDerivativeError(
        "the model must vary slowly compared with the last digit of the points, got values that "
        f"change by more than a percent with that digit, in {measurement.precision}, so that its "
        "derivatives are rounding errors: the numbers of the points are too large for the "
        "frequencies of the model (a sine of 30 z, Fourier features), or it has an almost singular "
        "matrix or a division by a small difference; standardise the data (mean 0, standard "
        "deviation 1), lower the frequencies, or use float64 for points and model"
    )


def require_whole(measurement: Measurement, kind: str) -> None:
    """Raise `WrongDerivativeError` where part of a model is cut from the graph."""
    if measurement.cut:
        raise WrongDerivativeError(
            f"the derivatives of this {kind} must be those of its values, got values that change "
            "along lines between the points by more or less: part of the model is cut from the "
            "graph (detach, .data, no_grad, numpy, a custom backward pass); compute it by torch's "
            "operations with gradients on, use FiniteDifferenceSSM, which needs no derivatives, or "
            "switch this check off with LogDensityField(model, check_smoothness=False) or the same "
            "of VectorField"
        )


def require_trainable(measurement: Measurement) -> None:
    """Raise `WrongDerivativeError` where the gradient of a loss with the score would be wrong."""
    if measurement.score_cut:
        raise WrongDerivativeError(
            "the score of a log-density that is trained on must be differentiable, got a score "
            "that changes along lines between the points by more or less than its derivative says: "
            "a backward pass inside the model is cut from the graph (a custom autograd function "
            "that computes its gradient from detached tensors); write it with torch's operations "
            "on ctx.saved_tensors, or switch this check off with LogDensityField(model, "
            "check_smoothness=False)"
        )


def _advice(measurement: Measurement) -> str:
    suspects = " ".join(s.split(" ")[0] for s in measurement.suspects)
    found = [text for words, text in ADVICE if any(w in suspects for w in words.split())]
    return found[0] if found else SMOOTH_ACTIVATIONS

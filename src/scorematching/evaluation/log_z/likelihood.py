"""Mean log-likelihood of points under an unnormalised log-density."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from scorematching._checks import check_count, check_points
from scorematching._memory import in_chunks
from scorematching.derivatives.repeats import check_repeats
from scorematching.evaluation.estimate import Estimate
from scorematching.evaluation.log_z.importance import LogZEstimate, check_effective
from scorematching.evaluation.log_z.weights import log_densities
from scorematching.types import LogDensity

_BATCH_SIZE = 16384


@dataclass(frozen=True)
class LogLikelihood(Estimate):
    """A mean log-likelihood, with the errors of both its parts.

    Attributes:
        mean: mean of ``f(x)`` over the points, less log Z.
        standard_error: of both parts together, ``sqrt(data_error^2 + log_z_error^2)``.
        count: number of points.
        data_error: standard error from the choice of points.
        log_z_error: standard error from log Z. It is the same for all points, so that it cancels
            when one model is evaluated on two sets of points, but not between two models.

    Example:
        >>> print(LogLikelihood(-1.5, 0.05, 100, data_error=0.03, log_z_error=0.04))
        -1.50 +- 0.05 (n=100)
    """

    data_error: float
    log_z_error: float


def log_likelihood(
    log_density: LogDensity,
    x: Tensor,
    log_z: LogZEstimate,
    min_effective: float | None = None,
    batch_size: int = _BATCH_SIZE,
    max_memory: int | None = None,
) -> LogLikelihood:
    """Mean log-likelihood of points under an unnormalised log-density, ``mean f(x) - log Z``.

    Args:
        log_density: f, callable, ``(N, *event) -> (N,)``.
        x: points ``(N, *event)``.
        log_z: its normalising constant, estimated.
        min_effective: least effective sample size of log Z; None is 100, or a thousandth of its
            samples if that is larger.
        batch_size: most points evaluated at a time.
        max_memory: bytes that may be taken beside model and points, which is measured.

    Raises:
        ValueError: the effective sample size of log Z is too small, or the log-density of a point
            depends on the batch or the call.

    Example:
        >>> from scorematching.distributions import Gaussian
        >>> from scorematching.evaluation import importance_log_z
        >>> normal = Gaussian(torch.zeros(2), torch.eye(2))
        >>> double = lambda x: normal(x) + 2.0
        >>> log_z = importance_log_z(double, normal, num=1000)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> abs(log_likelihood(double, x, log_z).mean - normal(x).mean().item()) < 1e-4
        True
    """
    check_points(x)
    check_count(batch_size, "batch_size", "it limits memory; 16384 suits most models")
    check_effective(log_z, min_effective)
    check_repeats(log_density, x, limited=max_memory is not None)
    with torch.no_grad():
        values = in_chunks(partial(log_densities, log_density), [x], batch_size, max_memory)
    points = Estimate.of(values)
    return LogLikelihood(
        mean=points.mean - log_z.log_z,
        standard_error=math.hypot(points.standard_error, log_z.standard_error),
        count=points.count,
        data_error=points.standard_error,
        log_z_error=log_z.standard_error,
    )

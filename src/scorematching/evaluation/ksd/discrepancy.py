"""The kernel Stein discrepancy between points and a model."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from scorematching._checks import check_choice, check_points
from scorematching._memory import limited
from scorematching.evaluation.ksd.stein_kernel import SteinKernel


def kernel_stein_discrepancy(
    model: Any,
    x: Tensor,
    kernel: str = "imq",
    bandwidth: float | None = None,
    statistic: str = "u",
    max_memory: int | None = None,
) -> float:
    """The squared kernel Stein discrepancy, ``E u(x, y)`` over pairs of points from the data.

    It is zero where the distribution of the points is the model, and needs the model's score alone.
    Its size depends on kernel, bandwidth and dimension; `ksd_test` says whether it is large.

    Cost: N^2 D / 2 products; memory is limited, 20,000 points need about 1 GB.

    Args:
        model: a `Field`, a `Distribution`, an estimator with ``grad_log_density``, a function that
            returns log-densities ``(N,)`` or scores of the shape of x, or a tensor of scores at x.
        x: points ``(N, *event)`` with N >= 2.
        kernel: "imq" (heavy tails, sensitive to missing mass) or "rbf".
        bandwidth: of the kernel; None is the median distance between the points.
        statistic: "u", the mean over pairs of distinct points: unbiased, may be negative; or "v",
            the mean over all pairs: never negative, biased by one over N.
        max_memory: bytes that may be taken beside model and points, which is measured.

    Returns:
        The squared discrepancy.

    Raises:
        TypeError: the model has no score.
        ValueError: the scores are not finite or of another shape, or an option is unknown.

    Reference: Liu, Lee and Jordan (2016), Eq. (14) and (15).

    Example:
        >>> import torch
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> right = kernel_stein_discrepancy(lambda x: -x, x)
        >>> wrong = kernel_stein_discrepancy(lambda x: 1 - x, x)
        >>> abs(right) < 0.01 < 0.5 < wrong
        True
    """
    check_choice(statistic, "statistic", ("u", "v"), '"u" is unbiased')
    check_points(x)
    if len(x) < 2:
        raise ValueError(f"x must hold two points or more, got {len(x)}; the mean is over pairs")
    with limited(max_memory, "take fewer points") as budget:
        stein = SteinKernel.of(model, x, kernel, bandwidth, budget)
        if statistic == "u":
            return stein.statistics().item()
        ones = stein.x.new_ones(1, len(stein))
        return stein.quadratic_forms(ones).item() / len(stein) ** 2

"""Kernel exponential families by iteration: the nu-method."""

from __future__ import annotations

import torch
from torch import Tensor

from scorematching._checks import check_count, check_positive
from scorematching.estimators.kernel_space import KernelExpFamily, per_set, prepare
from scorematching.kernels import in_chunks


def fit_nu_method(
    samples: Tensor,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    num_iterations: int = 10,
    nu: float = 1.0,
    base_scale: float | None = 2.0,
    include_diagonal: bool = False,
) -> KernelExpFamily:
    """A kernel exponential family by iteration, stopped early in place of a penalty.

    The accelerated descent of Brakhage on the score-matching loss, which after t steps has come as
    far as a penalty ``lam ~ 1 / t^2`` would let it::

        f_t = f_{t-1} + u_t (f_{t-1} - f_{t-2}) - w_t h^2 (C f_{t-1} + xi)

    C has norm 1 / h^2 or less. No system is solved, nor a matrix of M D rows ever made: a step
    costs M^2 D, memory is M^2.

    Args:
        samples: B sets of M samples, ``(*B, M, D)``.
        kernel: "rbf" or "imq".
        bandwidth: h, a number, or one per set, ``(*B)``; None is the median distance of each set.
        num_iterations: t; fewer are smoother.
        nu: order up to which smoothness of the true score is made use of.
        base_scale: q0 is a normal law with the mean of the samples and so many times their
            standard deviations; None is no q0.
        include_diagonal: let zero distances count in the median.

    Returns:
        The fitted log-density.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if there are fewer than two samples, some are not finite or all equal, or if a
            number is out of range.

    Reference: Zhou, Shi and Zhu (2020), Nonparametric score estimators, Example 3.4; Engl, Hanke
    and Neubauer (1996), Regularization of inverse problems, Section 6.3.

    Example:
        >>> fit_nu_method(torch.randn(50, 2), num_iterations=10).score(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """
    check_count(num_iterations, "num_iterations", "10 are about as lam = 1e-2")
    check_positive(nu, "nu", "1.0 suits most data")
    k, xi = prepare(samples, kernel, bandwidth, base_scale, include_diagonal)
    step = per_set(1 / k.curvature, samples)
    slopes = in_chunks(xi.gradient, samples, samples.shape[-2])
    a, c = torch.zeros_like(step), torch.zeros_like(samples)
    a_before, c_before = a, c
    for t in range(1, num_iterations + 1):
        u, w = nu_coefficients(t, nu)
        pull = k.mixed_sum(samples, samples, c) - a[..., None, None] * slopes
        pull = (w * step[..., None, None] / samples.shape[-2]) * pull
        a, a_before = a + u * (a - a_before) + w * step, a
        c, c_before = c + u * (c - c_before) - pull, c
    return KernelExpFamily(samples, k, xi.base, a, samples, c)


def nu_coefficients(t: int, nu: float) -> tuple[float, float]:
    """Momentum u and step w of the t-th iteration of the nu-method, for operators of norm one.

    They are the recursion of Jacobi polynomials: what is left of the component of f on an
    eigenvector with eigenvalue s is ``P_t(1 - 2 s) / P_t(1)`` with indices (2 nu - 1/2, -1/2).

    Example:
        >>> nu_coefficients(1, nu=1.0)
        (0.0, 1.2)
    """
    base = (t + 2 * nu - 1) * (2 * t + 4 * nu - 1)
    w = 4 * (2 * t + 2 * nu - 1) * (t + nu - 1) / base
    if t == 1:  # nothing has moved yet
        return 0.0, w
    return (t - 1) * (2 * t - 3) * (2 * t + 2 * nu - 1) / (base * (2 * t + 2 * nu - 3)), w

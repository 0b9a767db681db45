"""Kernel exponential families by iteration: the nu-method."""

from functools import partial

import torch
from torch import Tensor

from scorematching._checks import check_count, check_positive
from scorematching._memory import limited
from scorematching._precision import without_autocast
from scorematching.kernels.base import checked_samples
from scorematching.kernels.distances import in_chunks
from scorematching.kernels.exp_family import KernelExpFamily, per_set, prepare


def fit_nu_method(
    samples: Tensor,
    *,
    kernel: str = "rbf",
    bandwidth: float | Tensor | None = None,
    num_iterations: int = 10,
    nu: float = 1.0,
    base_scale: float | None = 2.0,
    include_diagonal: bool = False,
    max_memory: int | None = None,
) -> KernelExpFamily:
    """A kernel exponential family by iteration, stopped early instead of penalised.

    The accelerated gradient descent of Brakhage on the score-matching loss. Stopping after t steps
    acts like a penalty ``lam ~ 1 / t^2``::

        f_t = f_{t-1} + u_t (f_{t-1} - f_{t-2}) - w_t h^2 (C f_{t-1} + xi)

    C has norm 1 / h^2 or less. No linear system is solved: a step costs M^2 D, and memory is
    limited.

    ``num_iterations`` is t: fewer give a smoother estimate. ``nu`` is the order up to which the
    method exploits smoothness of the true score. Other arguments as for `fit_kernel_exp_family`.

    Reference: Zhou, Shi and Zhu (2020), Nonparametric score estimators, Example 3.4; Engl, Hanke
    and Neubauer (1996), Regularization of inverse problems, Section 6.3.

    Example:
        >>> fit_nu_method(torch.randn(50, 2), num_iterations=10).score(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """
    check_count(num_iterations, "num_iterations", "10 act like lam = 1e-2")
    check_positive(nu, "nu", "1.0 suits most data")
    samples = checked_samples(samples)
    with limited(max_memory, "take a random subset") as budget, without_autocast(samples):
        k, xi = prepare(samples, kernel, bandwidth, base_scale, include_diagonal, budget)
        x = xi.samples
        num, step = x.shape[-2], per_set(1 / k.curvature, x)
        slopes = xi.gradients(x)
        a, c = torch.zeros_like(step), torch.zeros_like(x)
        a_before, c_before = a, c
        for t in range(1, num_iterations + 1):
            u, w = nu_coefficients(t, nu)
            mixed = partial(k.mixed_sum, y=x, vectors=c)
            drift = in_chunks(mixed, x, num, budget=budget)
            gradient = drift - a[..., None, None] * slopes
            gradient = (w * step[..., None, None] / num) * gradient
            a, a_before = a + u * (a - a_before) + w * step, a
            c, c_before = c + u * (c - c_before) - gradient, c
        return KernelExpFamily(samples, k, xi.base, a, x, c)


def nu_coefficients(t: int, nu: float) -> tuple[float, float]:
    """Momentum u and step w of the t-th iteration of the nu-method, for operators of norm one.

    They are the recursion of Jacobi polynomials: after t steps the error of f along an eigenvector
    with eigenvalue s is multiplied by ``P_t(1 - 2 s) / P_t(1)`` with indices (2 nu - 1/2, -1/2).

    Example:
        >>> nu_coefficients(1, nu=1.0)
        (0.0, 1.2)
    """
    base = (t + 2 * nu - 1) * (2 * t + 4 * nu - 1)
    w = 4 * (2 * t + 2 * nu - 1) * (t + nu - 1) / base
    if t == 1:  # no momentum in the first step
        return 0.0, w
    return (t - 1) * (2 * t - 3) * (2 * t + 2 * nu - 1) / (base * (2 * t + 2 * nu - 3)), w

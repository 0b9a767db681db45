"""Stein thinning: a few points that represent a model best."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_count
from scorematching._memory import Chunks, joined, limited
from scorematching.evaluation.ksd.stein_kernel import SteinKernel


def stein_thin(
    x: Tensor,
    score: Any,
    m: int,
    kernel: str = "imq",
    bandwidth: float | None = None,
    max_memory: int | None = None,
) -> Tensor:
    """Indices of m points, chosen greedily to have the least kernel Stein discrepancy.

    The next point is the one with the least ``u(x, x) / 2 + sum_chosen u(x_chosen, x)``. It
    removes the burn-in of a Markov chain, compresses it, and corrects for a chain that samples
    another distribution than the model, as far as its points allow.

    Cost: m N D. The matrix of the kernel is never stored.

    Args:
        x: points ``(N, *event)``, from a Markov chain for example.
        score: of the model: a function that returns scores of the shape of x or log-densities
            ``(N,)``, a `Field`, a `Distribution`, an estimator, or a tensor of scores at x.
        m: number of points to choose.
        kernel: "imq" or "rbf".
        bandwidth: of the kernel; None is the median distance between the points.
        max_memory: bytes that may be taken beside model and points, which is measured.

    Returns:
        Indices ``(m,)`` into x, in the order of choice. A point may be chosen again.

    Raises:
        TypeError: score has no score, or m is not an integer.
        ValueError: m is less than one, the scores are not finite or of another shape, or
            max_memory is too small.

    Reference: Riabiz et al. (2022), *Optimal thinning of MCMC output*, Algorithm 1.

    Example:
        >>> x = torch.tensor([[5.0], [1.0], [0.1], [-1.0]])
        >>> stein_thin(x, lambda x: -x, m=3, bandwidth=1.0).tolist()  # 5.0 was burn-in
        [2, 3, 1]
    """
    check_count(m, "m", "choose one point or more")
    with limited(max_memory, "take fewer points") as budget:
        stein = SteinKernel.of(score, x, kernel, bandwidth, budget)
        chosen = torch.empty(m, dtype=torch.long, device=x.device)
        total, indices = 0.5 * stein.diagonal(), torch.arange(len(x), device=x.device)
        chunks = Chunks(len(x), budget)

        def column(rows: Tensor) -> Tensor:
            return stein.block(chosen[i : i + 1], rows)[0]

        for i in range(m):
            chosen[i] = total.argmin()
            total = total + joined(chunks, column, [indices])
        return chosen

"""The choice of a penalty: extended BIC and cross-validation of models refitted without it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from scorematching.inference.graphical.path import Array
from scorematching.inference.graphical.quadratic import Problem, Quadratic
from scorematching.inference.graphical.solver import Control, Pairs, conjugate_gradients

_REFIT = Control(tol=1e-8, max_iter=1000)


def refit(problem: Problem, K: Tensor, max_degree: float) -> Tensor | None:
    """The best K with the edges of the given one, without a penalty.

    None where a node has more than max_degree neighbours, or the minimum is not unique.
    """
    mask = K != 0
    if int(mask.sum(1).max()) - 1 > max_degree:
        return None
    pairs = Pairs(problem, mask)
    theta = conjugate_gradients(pairs, pairs.take(K), _REFIT)
    return None if theta is None else pairs.fill(theta)


def refit_all(problem: Problem, path: list[Tensor], max_degree: float) -> list[Tensor | None]:
    """`refit` for every solution of a path; neighbours with the same edges share theirs."""
    found: list[Tensor | None] = []
    for index, K in enumerate(path):
        if index and torch.equal(K != 0, path[index - 1] != 0):
            found.append(found[-1])
        else:
            found.append(refit(problem, K, max_degree))
    return found


def extended_bic(
    problem: Problem, models: list[Tensor | None], factor: float, n: int, gamma: float
) -> Array:
    """``2 factor loss + e log n + 2 gamma log(number of graphs with e edges)``, ``(L,)``.

    Args:
        problem: the loss.
        models: one K for every penalty; the criterion is infinite for None.
        factor: n over the scale of the loss (`calibration`).
        n: number of points.
        gamma: between 0 and 1.

    Reference: Chen and Chen (2008), *Extended Bayesian information criteria*.
    """
    return np.array([_extended_bic(problem, K, factor, n, gamma) for K in models])


def _extended_bic(problem: Problem, K: Tensor | None, factor: float, n: int, gamma: float) -> float:
    if K is None:
        return math.inf
    dim = len(K)
    pairs, edges = dim * (dim - 1) // 2, count_edges(K)
    graphs = math.lgamma(pairs + 1) - math.lgamma(edges + 1) - math.lgamma(pairs - edges + 1)
    return 2 * factor * problem.value(K) + edges * math.log(n) + 2 * gamma * graphs


def held_out_losses(
    total: Quadratic,
    folds: list[Quadratic],
    solve: Callable[[Quadratic], list[Tensor | None]],
    location: bool,
) -> Array:
    """Mean held-out loss of the models of a path, ``(L,)``; infinite where a fold has none.

    Args:
        total: coefficients of all points.
        folds: coefficients of each fold.
        solve: the models of the path for the points of the other folds.
        location: whether eta is fitted.
    """
    losses = []
    for fold in folds:
        train = total.minus(fold)
        losses.append(
            [math.inf if K is None else fold.loss(K, train.eta(K, location)) for K in solve(train)]
        )
    return np.mean(losses, axis=0)


def count_edges(K: Tensor) -> int:
    """Number of edges of the graph of K."""
    return (int((K != 0).sum()) - int((K.diagonal() != 0).sum())) // 2

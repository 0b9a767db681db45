"""The path of solutions over the penalty, with warm starts and strong rules."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from scorematching.inference.graphical.quadratic import Problem
from scorematching.inference.graphical.solver import (
    Control,
    Pairs,
    largest_curvature,
    proximal_descent,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Path:
    """Solutions for a decreasing sequence of penalties.

    Attributes:
        lambdas: penalties, decreasing, ``(L,)``.
        precisions: solutions K, ``(L, D, D)``.
        edges: numbers of edges, ``(L,)``.
        ebic: extended BIC of the model refitted without a penalty, ``(L,)``; infinite where it has
            too many edges for that. None if it was not computed.
        cv_loss: mean held-out loss of the folds, ``(L,)``; None if it was not computed.
        chosen: index of the selected penalty; None if there was no choice.
    """

    lambdas: Array
    precisions: Array
    edges: NDArray[np.int64]
    ebic: Array | None = None
    cv_loss: Array | None = None
    chosen: int | None = None

    def __repr__(self) -> str:
        """Sizes and the choice."""
        chosen = None if self.chosen is None else f"{self.lambdas[self.chosen]:.4g}"
        return (
            f"Path({len(self.lambdas)} penalties from {self.lambdas[0]:.4g} to "
            f"{self.lambdas[-1]:.4g}, {self.edges[0]} to {self.edges[-1]} edges, chosen: {chosen})"
        )

    def entry_penalties(self) -> Array:
        """The largest penalty at which each pair is an edge, ``(D, D)``; zero if it never is.

        A ranking of the pairs, for ROC curves.
        """
        present = self.precisions != 0
        first = present.argmax(axis=0)
        return np.where(present.any(axis=0), self.lambdas[first], 0.0)

    def plot(self, axes: Any) -> None:
        """Draw the off-diagonal entries of K against the penalty.

        Args:
            axes: matplotlib's, for example from ``pyplot.subplots()``.
        """
        rows, columns = np.triu_indices(self.precisions.shape[1], 1)
        values = self.precisions[:, rows, columns]
        axes.plot(self.lambdas, values[:, np.abs(values).max(axis=0) > 0], linewidth=0.8)
        if self.chosen is not None:
            axes.axvline(self.lambdas[self.chosen], color="0.4", linestyle="--", linewidth=0.8)
        axes.set_xscale("log")
        axes.invert_xaxis()
        axes.set_xlabel("penalty")
        axes.set_ylabel("entries of K")


def largest_penalty(problem: Problem) -> float:
    """The smallest penalty at which no pair is an edge, rounded up."""
    G = problem.gradient(diagonal_solution(problem))
    return _off_diagonal(G).max().item() * (1 + 1e-9)


def diagonal_solution(problem: Problem) -> Tensor:
    """The best diagonal K: ``g_jj / gamma_j,jj``."""
    dim = len(problem.g)
    nodes = torch.arange(dim)
    return (problem.g.diagonal() / problem.gamma.expand(dim, dim, dim)[nodes, nodes, nodes]).diag()


def follow(
    problem: Problem, lambdas: Array, control: Control, start: Tensor | None = None
) -> list[Tensor]:
    """Solutions for decreasing penalties, each from the one before.

    Pairs with ``|G_ij| < 2 lam - lam_before`` at the solution before are left out (the sequential
    strong rule of Tibshirani et al., 2012). Those that violate the conditions of the minimum are
    added afterwards.
    """
    K = diagonal_solution(problem) if start is None else start
    lipschitz = largest_curvature(problem)
    found, G, before = [], problem.gradient(K), float(lambdas[0])
    for lam in map(float, lambdas):
        mask = (_off_diagonal(G) >= 2 * lam - before) | (K != 0)
        K, G = _solve(problem, K, lam, mask, lipschitz, control)
        found.append(K)
        before = lam
    return found


def _solve(
    problem: Problem, K: Tensor, lam: float, mask: Tensor, lipschitz: float, control: Control
) -> tuple[Tensor, Tensor]:
    """The solution for one penalty, and its gradient."""
    while True:
        pairs = Pairs(problem, mask)
        theta, steps = proximal_descent(pairs, pairs.take(K), lam, lipschitz, control)
        if steps == control.max_iter:
            warnings.warn(
                f"{steps} steps did not reach the minimum for penalty {lam:.3g}; raise max_iter, "
                "or diagonal_multiplier, which makes the problem better conditioned",
                ConvergenceWarning,
                stacklevel=2,
            )
        K = pairs.fill(theta)
        G = problem.gradient(K)
        violated = (_off_diagonal(G) > lam * (1 + 1e-6)) & ~mask
        if not bool(violated.any()):
            return K, G
        mask = mask | violated


def _off_diagonal(G: Tensor) -> Tensor:
    """Sizes of the entries, with zeros on the diagonal."""
    return G.abs().fill_diagonal_(0.0)

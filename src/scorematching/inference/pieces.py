"""A problem evaluated in pieces, so that its rows fit into a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from scorematching._memory import Chunks
from scorematching.domains.base import rows_of_table
from scorematching.inference.problem import Derivatives, Problem


@dataclass(frozen=True, eq=False)
class ProblemInPieces(Problem):
    """A problem whose derivatives are sums over pieces of its rows.

    Attributes:
        max_memory: bytes that the evaluation of a piece may take.
        reserve: bytes of that which are kept for what is not in pieces.
        chunks: how many rows fit, for each part and question, as found by measurement.
    """

    max_memory: int = 2**30
    reserve: int = 0
    chunks: dict[Any, Chunks] = field(default_factory=dict)

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean loss and its gradient ``(P,)``."""
        value, gradient = theta.new_zeros(()), torch.zeros_like(theta)
        for _, found in self._pieces("gradient", lambda p: p.value_and_gradient(theta)):
            value, gradient = value + found[0], gradient + found[1]
        return value, gradient

    def derivatives(self, theta: Tensor) -> Derivatives:
        """Gradients of every row and the Hessian, see `Problem.derivatives`."""
        size = len(theta)
        gradient, hessian = theta.new_zeros(size), theta.new_zeros(size, size)
        gradients = theta.new_empty(self.num_points, size)
        for rows, found in self._pieces("derivatives", lambda p: p.derivatives(theta)):
            gradient, hessian = gradient + found.gradient, hessian + found.hessian
            gradients[rows] = found.gradients
        return Derivatives(gradient, gradients, hessian)

    def gradients(self, theta: Tensor) -> Tensor:
        """Gradients of every row alone, ``(N, P)``."""
        gradients = theta.new_empty(self.num_points, len(theta))
        for rows, found in self._pieces("gradients", lambda p: p.gradients(theta)):
            gradients[rows] = found
        return gradients

    def _pieces(self, question: str, ask: Callable[[Problem], Any]) -> Iterator[tuple[Tensor, Any]]:
        """Rows of the data, and the answer of the problem that consists of them."""
        for number, part in enumerate(self.parts):
            size, key = len(part.x), (question, number)
            if key not in self.chunks:
                self.chunks[key] = Chunks(size, self.max_memory, self.reserve)

            def answer(places: Tensor, part: Any = part) -> tuple[Tensor, Any]:
                piece = part.take(places)
                own = replace(piece, rows=torch.arange(len(places)))
                with rows_of_table(piece.rows, self.num_points):
                    return piece.rows, ask(Problem(self.model, (own,), self.weights[piece.rows]))

            yield from self.chunks[key](answer, torch.arange(size))

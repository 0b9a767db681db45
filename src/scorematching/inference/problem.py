"""The mean loss of a parametric model over the data, and its derivatives in the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scorematching.domains.base import rows_of_table
from scorematching.inference.parameters import Parametric
from scorematching.objectives.base import Objective

View = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]
"""How rows with missing entries see a log-density: as a function of what was observed."""


def unchanged(call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The log-density itself: the view of complete rows."""
    return call


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of the data that are treated alike.

    Attributes:
        rows: their numbers, ``(n,)``.
        x: their (observed) coordinates, ``(n, *event)``.
        objective: whose loss they have.
        noise: what it has drawn for them.
        view: the log-density of the observed coordinates.
    """

    rows: Tensor
    x: Tensor
    objective: Objective
    noise: Any = None
    view: View = unchanged

    @property
    def columns(self) -> Tensor:
        """Numbers of the columns of X that x has."""
        pattern = getattr(self.view, "pattern", torch.zeros(self.x[0].numel(), dtype=torch.bool))
        return (~pattern).nonzero()[:, 0]

    def drawn(self, generator: torch.Generator | None) -> Part:
        """The same rows with new noise."""
        return replace(self, noise=self.objective.draw(self.x, generator))

    def take(self, places: Tensor) -> Part:
        """Some of the rows, by their places in this part."""
        noise = self.noise
        if isinstance(noise, Tensor):
            noise = noise[places] if noise.ndim == self.x.ndim else noise[:, places]
        own = {"rows": self.rows[places], "x": self.x[places], "noise": noise}
        view: Any = self.view
        return replace(self, view=view.take(places) if hasattr(view, "take") else view, **own)


class Derivatives(NamedTuple):
    """What a full pass over the data gives.

    Attributes:
        gradient: of the weighted mean loss, ``(P,)``.
        gradients: of the loss of every point, ``(N, P)``.
        hessian: of the weighted mean loss, ``(P, P)``.
    """

    gradient: Tensor
    gradients: Tensor
    hessian: Tensor


@dataclass(frozen=True, eq=False)
class Problem:
    """The weighted mean loss as a function of the flat parameters.

    Attributes:
        model: the parametric model.
        parts: all rows of the data, each in one part.
        weights: of the rows, ``(N,)``, with sum one.
    """

    model: Parametric
    parts: tuple[Part, ...]
    weights: Tensor

    @property
    def num_points(self) -> int:
        """N."""
        return len(self.weights)

    def redrawn(self, generator: torch.Generator | None) -> Problem:
        """The same problem with new noise."""
        return replace(self, parts=tuple(part.drawn(generator) for part in self.parts))

    def losses(self, theta: Tensor, checked: bool = False) -> Tensor:
        """The loss of every row, ``(N,)``."""
        call = self.model.at(theta)
        losses = []
        for part in self.parts:
            field = self.model.field(part.view(call), checked)
            with rows_of_table(part.rows, self.num_points):
                losses.append(part.objective.loss(field, part.x, part.noise))
        if len(self.parts) == 1:
            return losses[0]
        order = torch.cat([part.rows for part in self.parts]).argsort()
        return torch.cat(losses)[order]

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean loss and its gradient ``(P,)``."""
        theta = theta.detach().requires_grad_()
        value = self.losses(theta) @ self.weights
        return value.detach(), _gradient(value, theta)

    def derivatives(self, theta: Tensor) -> Derivatives:
        """Gradients of every row and the Hessian: P backward passes over one graph.

        With ``g(theta, w)`` the gradient of ``sum_i w_i loss_i``, the derivative of g in w holds
        the gradients of all rows, and the derivative in theta is the Hessian.
        """
        theta, weights, g = self._weighted_gradient(theta)
        gradients, hessian = jacobian(g, (weights, theta))
        return Derivatives(g.detach(), gradients.T, 0.5 * (hessian + hessian.T))

    def gradients(self, theta: Tensor) -> Tensor:
        """Gradients of every row alone, ``(N, P)``."""
        _, weights, g = self._weighted_gradient(theta)
        return jacobian(g, (weights,))[0].T

    def gradients_along(self, theta: Tensor, u: Tensor) -> Tensor:
        """Products of the gradients of every row with a vector ``u: (P,)``, ``(N,)``."""
        _, weights, g = self._weighted_gradient(theta)
        return jacobian((g @ u)[None], (weights,))[0][0]

    def _weighted_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters, weights, and the gradient ``(P,)`` as a function of both."""
        theta = theta.detach().requires_grad_()
        weights = self.weights.clone().requires_grad_()
        return theta, weights, _gradient(self.losses(theta) @ weights, theta, create_graph=True)


def _gradient(value: Tensor, theta: Tensor, create_graph: bool = False) -> Tensor:
    (g,) = torch.autograd.grad(value, theta, create_graph=create_graph, allow_unused=True)
    return torch.zeros_like(theta) if g is None else g


CHUNK_NUMBERS = 1 << 22
"""Numbers that one batched backward pass may carry for the inputs alone."""


def jacobian(g: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Derivatives of every entry of ``g: (P,)``, in batches where autograd can do that."""
    if not g.requires_grad:
        return [g.new_zeros(len(g), len(each)) for each in inputs]
    size = max(1, CHUNK_NUMBERS // sum(len(each) for each in inputs))
    basis = torch.eye(len(g), dtype=g.dtype)
    try:
        chunks = [_pull_back(g, inputs, part, batched=True) for part in basis.split(size)]
        return [torch.cat(parts) for parts in zip(*chunks)]
    except RuntimeError:  # an operation whose backward pass cannot be batched
        rows = [_pull_back(g, inputs, row, batched=False) for row in basis]
        return [torch.stack(parts) for parts in zip(*rows)]


def _pull_back(g: Tensor, inputs: tuple[Tensor, ...], v: Tensor, batched: bool) -> list[Tensor]:
    found = torch.autograd.grad(
        g, inputs, v, retain_graph=True, allow_unused=True, is_grads_batched=batched
    )
    shape = v.shape[:-1]
    return [
        each.new_zeros(*shape, len(each)) if part is None else part
        for part, each in zip(found, inputs)
    ]

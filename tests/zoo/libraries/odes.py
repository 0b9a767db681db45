"""Continuous normalising flows and fields with torchdiffeq."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchdiffeq
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, density, vector


class Drift(nn.Module):
    """A velocity and minus its divergence, for the pair of a state and a log-density."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 5) / 2)
        self.bias, self.out = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.randn(5, 2) / 2)

    def forward(self, t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h = torch.tanh(state[0] @ self.weight + self.bias + t)
        slopes = (1 - h.square()) * (self.weight * self.out.T).sum(0)
        return h @ self.out, slopes.sum(-1)


class Flow(nn.Module):
    """The density of points that an ordinary differential equation takes to the normal."""

    def __init__(self, solve: Any, **options: Any) -> None:
        super().__init__()
        self.drift, self.solve, self.options = Drift(), solve, options

    def forward(self, x: Tensor) -> Tensor:
        times = torch.tensor([0.0, 1.0])
        start = (x, torch.zeros(len(x)))
        z, change = self.solve(self.drift, start, times, **self.options)
        return change[-1] - 0.5 * z[-1].square().sum(-1)


class Transport(nn.Module):
    """The field of displacements over unit time."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        times = torch.tensor([0.0, 1.0])
        return torchdiffeq.odeint(lambda t, z: self.net(z), x, times, **self.options)[-1] - x


def flow(solve: Any, **options: Any) -> Callable[[], Model]:
    return lambda: density(Flow(solve, **options), 2, num=4)


EXACT = {"rtol": 1e-9, "atol": 1e-10}
ADJOINT = "the adjoint method has no graph for a second derivative"
ENTRIES = [
    Entry("torchdiffeq", "odeint, dopri5", flow(torchdiffeq.odeint, **EXACT)),
    Entry(
        "torchdiffeq",
        "odeint, rk4",
        flow(torchdiffeq.odeint, method="rk4", options={"step_size": 0.25}),
    ),
    Entry(
        "torchdiffeq",
        "odeint, Euler",
        flow(torchdiffeq.odeint, method="euler", options={"step_size": 0.2}),
    ),
    Entry(
        "torchdiffeq",
        "odeint, Adams",
        flow(torchdiffeq.odeint, method="implicit_adams", options={"step_size": 0.02}, **EXACT),
    ),
    Entry(
        "torchdiffeq",
        "odeint, Adams, long steps",
        flow(torchdiffeq.odeint, method="implicit_adams", options={"step_size": 0.1}, **EXACT),
        "coupled",
        "its iteration ends by the whole batch, and before it has converged",
    ),
    Entry(
        "torchdiffeq",
        "odeint_adjoint, dopri5",
        flow(torchdiffeq.odeint_adjoint, **EXACT),
        "opaque",
        ADJOINT,
    ),
    Entry(
        "torchdiffeq",
        "odeint_adjoint, rk4",
        flow(torchdiffeq.odeint_adjoint, method="rk4", options={"step_size": 0.05}),
        "opaque",
        ADJOINT,
    ),
    Entry(
        "torchdiffeq",
        "field of displacements",
        lambda: vector(Transport(method="rk4", options={"step_size": 0.25}), 2),
    ),
]

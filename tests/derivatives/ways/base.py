"""`Way`, a small model around one operation, and `Bank`, the parameters that ways share."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.models_zoo import normal
from tests.tolerances import ROUTES


class Bank(nn.Module):
    """Parameters and modules, created at the first request and returned again later."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.ParameterDict()
        self.networks = nn.ModuleDict()

    def __call__(self, *shape: int, k: int = 0) -> Tensor:
        """The k-th parameter of a shape."""
        key = "x".join(map(str, shape)) + f"_{k}"
        if key not in self.numbers:
            self.numbers[key] = nn.Parameter(0.6 * normal(*shape, generator=_seeded(key)))
        return self.numbers[key]

    def net(self, key: str, build: Callable[[], nn.Module]) -> Any:
        """A module with parameters of its own."""
        if key not in self.networks:
            with torch.random.fork_rng():  # constructors draw from torch's default generator
                module = build().double()
            for i, parameter in enumerate(module.parameters()):
                fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
                numbers = normal(*parameter.shape, generator=_seeded(f"{key}{i}"))
                parameter.data = numbers / fan_in**0.5
            self.networks[key] = module
        return self.networks[key]


def _seeded(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(key.encode()))


Op = Callable[[Any, Any], Any]
"""``op(z, p)``: points ``(N, *event)`` and a `Bank` to any tensor ``(N, ...)``."""


@dataclass(frozen=True)
class Way:
    """A way to write a model: one operation between two curved functions.

    Batches of N = 3 = D points expose an operation that confuses its axes.

    Attributes:
        traced: whether it must be traced, must not be, or (None) may be either.
        curved_after: whether a curved function follows. Where one does, an error in the batch axis
            of the operation can go unnoticed, because the axis is not known there.
        kinked: whether it is not smooth, or cut from the graph, so that the check is switched off.
        written_out: the same function where torch's own derivatives of it are wrong or missing.
        tolerance: of answers and gradients; larger where the operation changes precision.
    """

    name: str
    op: Op
    event: tuple[int, ...] = (3,)
    traced: bool | None = True
    curved_after: bool = True
    kinked: bool = False
    written_out: Op | None = None
    tolerance: float = ROUTES

    def density(self, bank: Bank) -> Callable[[Tensor], Tensor]:
        """The log-density around the operation, ``(N, *event) -> (N,)``."""
        return lambda x: self._around(self.op, x, bank)

    def oracle(self, bank: Bank) -> Callable[[Tensor], Tensor]:
        """The log-density in operations that torch differentiates correctly."""
        return lambda x: self._around(self.written_out or self.op, x, bank)

    def features(self, bank: Bank, trusted: bool = False) -> Callable[[Tensor], Tensor]:
        """Two columns instead of one, ``(N, *event) -> (N, 2)``."""

        def both(x: Tensor) -> Tensor:
            f = (self.oracle if trusted else self.density)(bank)(x)
            return torch.stack([f, torch.sin(f)], 1)

        return both

    def vector(self, bank: Bank, trusted: bool = False) -> Callable[[Tensor], Tensor]:
        """A score network that ends in the operation, ``(N, D) -> (N, D)``."""

        def h(x: Tensor) -> Tensor:
            op = self.written_out if trusted and self.written_out else self.op
            y = op(x + 0.3 * torch.sin(x), bank)
            y = y.reshape(y.shape[0], -1)
            width = x[0].numel()
            return torch.reshape(
                torch.sin(y) @ bank(y.shape[1], width, k=8) - x.flatten(1), x.shape
            )

        return h

    def _around(self, op: Op, x: Tensor, bank: Bank) -> Tensor:
        y = op(x + 0.3 * torch.sin(x), bank)
        y = y.reshape(y.shape[0], -1)
        y = torch.tanh((0.7 + 0.1 * bank(1, k=9)) * y) if self.curved_after else y
        ramp = torch.linspace(0.5, 1.5, y.shape[1], dtype=torch.float64)
        return (y * ramp).sum(1) - 0.1 * x.square().flatten(1).sum(1)

    def points(self, n: int = 3) -> Tensor:
        """Standard normal points ``(n, *event)``."""
        return normal(n, *self.event, generator=torch.Generator().manual_seed(1))


INDEX = torch.tensor([2, 0, 0])
EVEN = torch.tensor([True, False, True])
GATHER = torch.tensor([[1, 0, 2, 2]])


def constants(*shape: int) -> Tensor:
    """Numbers that are not parameters."""
    return torch.linspace(-1, 1.3, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)

"""Scores, curvatures and gradients by finite differences, with an estimate of their own error.

Only values and first-order reverse-mode gradients of the model are used, and the latter are
compared with differences of values first. Second and third derivatives are differences of those,
by Ridders' method: Richardson extrapolation over halved steps, which keeps the estimate that
changes least and returns that change as its error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from tests.zoo.entry import Model, seeded

LEVELS = 8
FIRST_STEP = 0.16
MAX_TRACE = 6


@dataclass(frozen=True)
class Measured:
    """A number or tensor, and how far it may be off."""

    value: Tensor
    error: float

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.value + other.value, self.error + other.error)

    @property
    def scale(self) -> float:
        return max(float(self.value.abs().max()), 1e-3)

    @property
    def doubt(self) -> float:
        """Largest error relative to the largest value."""
        return self.error / self.scale

    def distance(self, other: Tensor) -> float:
        """Largest difference relative to the largest value; infinite where not finite."""
        difference = float((other.detach() - self.value).abs().max()) / self.scale
        return difference if difference == difference else float("inf")


def derivative(f: Callable[[float], Tensor], order: int = 1, first: float = FIRST_STEP) -> Measured:
    """First or second derivative of ``f`` at zero by Ridders' method."""
    centre = f(0.0) if order == 2 else None
    steps = [first / 2**k for k in range(LEVELS)]
    row = [_quotient(f, centre, h) for h in steps]
    best = Measured(row[-1], float("inf"))
    for k in range(1, LEVELS):
        better = [b + (b - a) / (4**k - 1) for a, b in pairwise(row)]
        for old, new, older in zip(row[1:], better, row):
            change = float(torch.maximum((new - old).abs(), (new - older).abs()).max())
            best = Measured(new, change) if change < best.error else best
        row = better
    return best


def _quotient(f: Callable[[float], Tensor], centre: Tensor | None, h: float) -> Tensor:
    ahead, behind = f(h), f(-h)
    if centre is None:
        return (ahead - behind) / (2 * h)
    return (ahead - 2 * centre + behind) / h**2


@dataclass(frozen=True)
class Truth:
    """What a field must answer at the points, along directions v."""

    score: Measured
    curvature: Measured
    divergence: Measured | None
    loss: Measured
    gradient: Measured

    @property
    def doubt(self) -> float:
        """The largest relative error of any part."""
        parts = [self.score, self.curvature, self.loss, self.gradient, self.divergence]
        return max(part.doubt for part in parts if part is not None)


def measure(model: Model, v: Tensor, max_trace: int = MAX_TRACE) -> Truth:
    """Everything by differences, along the directions ``v: (N, *event)``.

    The divergence is measured for events of at most `max_trace` coordinates.
    """
    oracle = _Density(model) if model.kind == "density" else _Vector(model)
    score = oracle.score()
    curvature = oracle.curvature(v)
    loss = Measured(0.5 * _inner(score.value, score.value) + curvature.value, curvature.error)
    gradient = oracle.gradient(score.value, v)
    small = model.x[0].numel() <= max_trace
    divergence = _divergence(oracle) if small else None
    return Truth(score, curvature, divergence, loss, gradient)


def _divergence(oracle: _Oracle) -> Measured:
    x = oracle.x
    basis = torch.eye(x[0].numel(), dtype=x.dtype).reshape(-1, *x.shape[1:])
    first, *rest = [oracle.curvature(e.expand_as(x)) for e in basis]
    return sum(rest, start=first)


class _Oracle:
    """Values and first-order gradients of a model."""

    def __init__(self, model: Model) -> None:
        self.model, self.x = replace(model, call=seeded(model.call)), model.x.detach()

    def curvature(self, v: Tensor) -> Measured:
        """``v' (grad s) v`` as the difference of scores along v."""
        return derivative(lambda t: _inner(v, self.score_at(self.x + t * v)))

    def score_at(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def pull(self, x: Tensor, weights: Tensor) -> Tensor:
        """Gradient of ``sum(weights * model(x))`` in the parameters, flat."""
        parameters = [p for p in self.model.parameters if p.requires_grad]
        if not parameters:
            return torch.zeros(1)
        with torch.enable_grad():
            total = (self.model.call(x) * weights).sum()
            grads = torch.autograd.grad(total, parameters, allow_unused=True)
        return torch.cat([_or_zero(g, p) for g, p in zip(grads, parameters)])

    def unchecked(self, weights: Tensor) -> float:
        """Relative error of `pull` at the points along one direction of the parameters."""
        generator = torch.Generator().manual_seed(5)
        parameters = [p for p in self.model.parameters if p.requires_grad]
        if not parameters:
            return 0.0
        ways = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
        length = _flat(ways).norm()
        ways = [way / length for way in ways]
        exact = (self.pull(self.x, weights) * _flat(ways)).sum()[None]
        near = derivative(lambda t: self._moved(parameters, ways, t, weights))
        return max(near.distance(exact) - near.doubt, 0.0)

    def _moved(self, parameters: list[Tensor], ways: list[Tensor], t: float, c: Tensor) -> Tensor:
        kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p, way in zip(parameters, ways):
                p += t * way
            value = (self.model.call(self.x) * c).sum()[None]
            for p, old in zip(parameters, kept):
                p.copy_(old)
        return value


class _Density(_Oracle):
    def score(self) -> Measured:
        """Reverse mode, with its distance from differences of values along three directions."""
        exact = self.score_at(self.x)
        generator = torch.Generator().manual_seed(4)
        error = 0.0
        for _ in range(3):
            u = 2 * torch.rand(self.x.shape, generator=generator, dtype=self.x.dtype) - 1
            near = derivative(lambda t, u=u: self._value(self.x + t * u))
            error = max(error, float((_inner(u, exact) - near.value).abs().max()) - near.error)
        return Measured(exact, error)

    def score_at(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.model.call(x).sum(), x)[0]

    def gradient(self, score: Tensor, v: Tensor) -> Measured:
        """Of the mean loss: ``d/dt`` along the score plus ``d2/dt2`` along v of `pull`."""
        mean = torch.full((len(self.x),), 1 / len(self.x))
        along_score = derivative(lambda t: self.pull(self.x + t * score, mean), first=_short(score))
        total = along_score + derivative(lambda t: self.pull(self.x + t * v, mean), order=2)
        return Measured(total.value, total.error + self.unchecked(mean) * total.scale)

    def _value(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model.call(x)


class _Vector(_Oracle):
    def score(self) -> Measured:
        exact = self.score_at(self.x)
        return Measured(exact, 0.0)

    def score_at(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model.call(x).detach()

    def gradient(self, score: Tensor, v: Tensor) -> Measured:
        """Of the mean loss: `pull` of the score plus ``d/dt`` along v of `pull`."""
        num = len(self.x)
        first = self.pull(self.x, score / num)
        total = derivative(lambda t: self.pull(self.x + t * v, v / num))
        total = total + Measured(first, 0.0)
        return Measured(total.value, total.error + self.unchecked(score / num) * total.scale)


def _short(score: Tensor) -> float:
    """A first step along the score that moves no coordinate by more than `FIRST_STEP`."""
    return FIRST_STEP / max(float(score.abs().max()), 1.0)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(-1)


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros(like.numel()) if gradient is None else gradient.detach().flatten()

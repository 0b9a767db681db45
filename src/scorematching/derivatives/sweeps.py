"""The two layerwise baselines, on the same tape as pairing.

Both start from the pairing identity, ``H = sum_i (dz_i/dx)' [lambda_i phi_i''] (dz_i/dx)``, where
z_i is what operation i reads.

*Curvature propagation* puts noise of covariance ``lambda_i phi_i''`` into every z_i and pulls it
back to x: ``S = sum_i (dz_i/dx)' n_i`` has ``E[S S'] = H``, so ``|Re S|^2 - |Im S|^2`` is an
unbiased estimate of the trace. Negative curvature makes the noise imaginary; S is kept as two
real vectors.

*Approximate backpropagation* keeps only the diagonal of every Hessian. Read forward: the mean
square of the tangents of all D directions is carried through linear maps by the squares of their
coefficients, as if tangents were uncorrelated. Exact for one hidden layer, biased for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_depends
from scorematching.derivatives.pairing import Pairing
from scorematching.derivatives.tracing import (
    Push,
    Tape,
    Traced,
    Untraceable,
    lift,
    name_of,
    on_full,
    times,
    widen,
)

Signs = Callable[[Tensor], Tensor]
"""Independent random signs of the shape of a tensor."""

Trace = Callable[[Any, Tape], Traced]
"""The model's output at the points, traced: ``(tangents or None, tape) -> output``."""


class Nodes(Tape):
    """Remembers every curved operation: what it read, what it wrote, its second derivative."""

    differentiates = True
    closed_forms = False

    def __init__(self, num_points: int) -> None:
        """Start an empty tape."""
        super().__init__(num_points)
        self.curved: list[tuple[Tensor, Tensor, Any]] = []
        self.products: list[tuple[Tensor, Tensor, Tensor, Push]] = []

    def elementwise(
        self, x: Traced, y: Tensor, d1: Any, d2: Any, shortcut: Push | None = None
    ) -> Traced:
        """Remember ``(z, y, f''(z))``."""
        if d2 is not None:
            self.curved.append((x.p, y, d2))
        return Traced(y, None, self, x.axis)

    def generic(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Traced:
        """Refuse an operation in no table."""
        raise Untraceable(f"{name_of(func)}: no rule for it")

    def product(self, a: Traced, b: Traced, y: Tensor, push: Push, axis: int | None) -> Traced:
        """Remember ``(a, b, B(a, b))`` and B."""
        self.products.append((a.p, b.p, y, push))
        return Traced(y, None, self, axis)


class Squares(Pairing):
    """Carries the mean square of tangents, as if they were uncorrelated."""

    closed_forms = False

    def elementwise(
        self, x: Traced, y: Tensor, d1: Any, d2: Any, shortcut: Push | None = None
    ) -> Traced:
        """``f'(x)^2`` times the square; it is also what f'' multiplies."""
        bend = None if d2 is None else lambda: times(d2, widen(x.u, x.p)[0])
        return self.emit([x], y, lambda u: d1 * d1 * u, bend, x.axis)

    def linear(
        self,
        x: Traced,
        y: Tensor,
        push: Push,
        axis: int | None,
        square: Push | None = None,
        shared: bool = False,
    ) -> Traced:
        """Squared coefficients."""
        if square is None:
            raise Untraceable("a linear operation whose squared coefficients are not known")
        return self.emit([x], y, on_full(square, x), None, axis)

    def add(self, a: Traced, b: Traced, y: Tensor, scale: float, axis: int | None) -> Traced:
        """Squares add, without the term for their correlation."""
        return super().add(a, b, y, scale * scale, axis)

    def product(self, a: Traced, b: Traced, y: Tensor, push: Push, axis: int | None) -> Traced:
        """Squared coefficients on both sides, without the term for their correlation."""

        def act(u: Tensor, w: Tensor) -> Tensor:
            u, w = lift(widen(u, a.p), y.ndim), lift(widen(w, b.p), y.ndim)
            return push(u, b.p.square()) + push(a.p.square(), w)

        # <lambda, B(x, x)> has a diagonal of its own, which is not dropped.
        bend = (lambda: 2 * push(*[torch.sqrt(widen(a.u, a.p)[0])] * 2)) if a is b else None
        return self.emit([a, b], y, act, bend, axis)

    def generic(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Traced:
        """Refuse an operation in no table."""
        raise Untraceable(f"{name_of(func)}: no rule for it")


def approximate_backprop(trace: Trace, x: Tensor) -> tuple[Tensor, Tensor]:
    """The score and the approximate trace of the Hessian, ``(N, *event), (N,)``."""
    tape = Squares(x)
    y = trace(torch.ones_like(x)[None], tape)
    return tape.pair(y.p)


def curvature_propagation(trace: Trace, x: Tensor, signs: Signs) -> tuple[Tensor, Tensor]:
    """The score and an unbiased estimate of the trace of the Hessian, ``(N, *event), (N,)``."""
    tape = Nodes(x.shape[0])
    y = trace(None, tape)
    outputs = [n[1] for n in tape.curved] + [n[2] for n in tape.products]
    s, *adjoints = torch.autograd.grad(
        y.p.sum(), [x, *outputs], create_graph=True, allow_unused=True
    )
    check_depends(s is not None, "log-density")
    noise = _noise(tape, adjoints, signs)
    real, imaginary = (_pull_back(x, [(n[0], n[k]) for n in noise]) for k in (1, 2))
    return s, (real.square() - imaginary.square()).flatten(1).sum(1)


def _noise(tape: Nodes, adjoints: list[Any], signs: Signs) -> list[tuple[Tensor, Any, Any]]:
    """Where noise goes in, with its real and imaginary part."""
    noise: list[tuple[Tensor, Any, Any]] = []
    split = len(tape.curved)
    for (z, _, d2), adjoint in zip(tape.curved, adjoints[:split]):
        if adjoint is not None:
            m, v = times(d2, adjoint), signs(z)
            noise.append((z, _root(m) * v, _root(-m) * v))
    for (a, b, _, push), adjoint in zip(tape.products, adjoints[split:]):
        if adjoint is not None:
            noise += _product_noise(a, b, push, adjoint, signs)
    return noise


def _product_noise(a: Tensor, b: Tensor, push: Push, adjoint: Tensor, signs: Signs) -> Any:
    """Noise of covariance ``[[0, L], [L', 0]]``, for ``<lambda, B(a, b)> = a' L b``.

    ``n_a = (v + iw) / sqrt 2`` and ``n_b = L' (v - iw) / sqrt 2`` for independent signs v and w.
    """
    v, w = signs(a) * 0.5**0.5, signs(a) * 0.5**0.5
    origin = torch.zeros_like(b).requires_grad_()  # L does not depend on b: any value will do
    real, imaginary = (
        torch.autograd.grad(push(n, origin), origin, adjoint, create_graph=True)[0] for n in (v, w)
    )
    return [(a, v, w), (b, real, -imaginary)]


def _pull_back(x: Tensor, sources: list[tuple[Tensor, Tensor]]) -> Tensor:
    """``sum_i (dz_i/dx)' n_i`` in one reverse pass."""
    at_x = [n for z, n in sources if z is x]  # an operation that reads x itself
    inside = [(z, n) for z, n in sources if z is not x]
    total = sum(at_x, torch.zeros_like(x))
    if not inside:
        return total
    (pulled,) = torch.autograd.grad(
        [z for z, _ in inside], x, [n for _, n in inside], create_graph=True, allow_unused=True
    )
    return total if pulled is None else total + pulled


def _root(m: Tensor) -> Tensor:
    """``sqrt(max(m, 0))`` with a gradient of zero, not NaN, where m is not positive."""
    positive = m > 0
    return torch.where(positive, torch.where(positive, m, torch.ones_like(m)).sqrt(), 0.0)

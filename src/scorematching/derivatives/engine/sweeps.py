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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scorematching._checks import check_depends
from scorematching.derivatives.engine.pairing import Pairing
from scorematching.derivatives.engine.tape import (
    ONES,
    Axis,
    Push,
    Tape,
    lift,
    on_full,
    times,
    widen,
)
from scorematching.derivatives.engine.trace import Traced, Untraceable, name_of

Signs = Callable[[Tensor], Tensor]
"""Independent random signs of the shape of a tensor."""

Trace = Callable[[Any, Callable[..., Tape]], tuple[Any, Traced]]
"""The model's output at the points, traced: ``(tangents or None, make) -> (tape, output)``."""


class Layerwise(Tape):
    """Refuses operations of whose second derivative neither a diagonal nor a root is known."""

    closed_forms = False

    def dense(self, x: Traced, y: Tensor, push: Push, second: Push, axis: Axis) -> Traced:
        """Refuse a dense second derivative."""
        raise Untraceable("an operation with a dense second derivative")

    def opaque(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Traced:
        """Refuse an operation without a rule."""
        raise Untraceable(f"{name_of(func)}: no rule for it")


class Nodes(Layerwise):
    """Keeps every curved operation: what it read, what it returned, its second derivative."""

    differentiates = True

    def __init__(self, num_points: int, graphs: dict[Any, Any] | None = None) -> None:
        super().__init__(num_points, graphs)
        self.curved: list[tuple[Tensor, Tensor, Any]] = []
        self.products: list[tuple[Tensor, Tensor, Tensor, Push]] = []

    def elementwise(
        self, x: Traced, y: Tensor, d1: Any, d2: Any, shortcut: Push | None = None
    ) -> Traced:
        """Keep ``(z, y, f''(z))``."""
        if d2 is not None:
            self.curved.append((x.p, y, d2))
        return Traced(y, None, self, x.axis)

    def product(self, a: Traced, b: Traced, y: Tensor, form: Push, axis: Axis) -> Traced:
        """Keep ``(a, b, B(a, b))`` and B."""
        self.products.append((a.p, b.p, y, form))
        return Traced(y, None, self, axis)


class Squares(Layerwise, Pairing):
    """Carries the mean square of tangents, as if they were uncorrelated."""

    def elementwise(
        self, x: Traced, y: Tensor, d1: Any, d2: Any, shortcut: Push | None = None
    ) -> Traced:
        """``f'(x)^2`` times the square; it is also what f'' multiplies."""
        second = None if d2 is None else lambda: times(d2, widen(x.u, x.p)[0])
        return self.emit([x], y, lambda u: d1 * d1 * u, second, x.axis)

    def linear(
        self, x: Traced, y: Tensor, push: Push, axis: Axis, scales: Any = None, shared: bool = False
    ) -> Traced:
        """Squared coefficients."""
        if scales is None:
            raise Untraceable("a linear operation whose coefficients are not known")
        if scales is not ONES:
            squares = _squared(scales)
            return self.emit([x], y, lambda t: push(widen(t, x.p), squares), None, axis)
        return self.emit([x], y, on_full(push, x), None, axis)

    def add(self, a: Traced, b: Traced, y: Tensor, scale: float, axis: Axis) -> Traced:
        """Squares add, without the term for their correlation."""
        return super().add(a, b, y, scale * scale, axis)

    def product(self, a: Traced, b: Traced, y: Tensor, form: Push, axis: Axis) -> Traced:
        """Squared coefficients on both sides, without the term for their correlation."""

        def push(u: Tensor, w: Tensor) -> Tensor:
            u, w = lift(widen(u, a.p), y.ndim), lift(widen(w, b.p), y.ndim)
            return form(u, b.p.square()) + form(a.p.square(), w)

        # <lambda, B(x, x)> has a diagonal of its own, which is not dropped.
        second = (lambda: 2 * form(*[torch.sqrt(widen(a.u, a.p)[0])] * 2)) if a is b else None
        return self.emit([a, b], y, push, second, axis)


def _squared(scales: Any) -> Any:
    """The squares of coefficients: of a number, a tensor or a list of tensors."""
    return [c * c for c in scales] if isinstance(scales, list) else scales * scales


def approximate_backprop(trace: Trace, x: Tensor) -> tuple[Tensor, Tensor]:
    """The score and the approximate trace of the Hessian, ``(N, *event), (N,)``."""
    tape, y = trace(torch.ones_like(x)[None], partial(Squares, x))
    return tape.pair(y.p)


def curvature_propagation(trace: Trace, x: Tensor, signs: Signs) -> tuple[Tensor, Tensor]:
    """The score and an unbiased estimate of the trace of the Hessian, ``(N, *event), (N,)``."""
    tape, y = trace(None, partial(Nodes, x.shape[0]))
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
    origin = torch.zeros_like(b).requires_grad_()  # L does not depend on b
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

"""Tangent-adjoint pairing: curvature from first-order tangents and one reverse pass.

Let a model be a chain of operations ``y_i = phi_i(.)``, ``u_i`` the tangent along v of what
operation i reads, and ``lambda_i = df/dy_i`` the ordinary adjoint of what it returns.
Differentiating ``f(x + e v)`` twice in e, every operation adds its own second derivative and
nothing else:

    ``v' H v = sum_i <lambda_i, phi_i''[u_i, u_i]>``

Linear operations add nothing, an elementwise f adds ``lambda f''(z) u^2``, a product adds
``2 lambda u_a u_b``. So M *first-order* tangents forward and ONE reverse pass, which also gives
the score, replace M second-order passes; the average over the M directions is taken inside
(``mean_j u_j^2``), so the reverse pass does not grow with M. With the basis vectors as directions
the same code gives the exact trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vmap
from torch.nn import functional as F

from scorematching._checks import check_depends
from scorematching.derivatives.engine.tape import (
    Axis,
    Inputs,
    Push,
    Second,
    Tape,
    Trailing,
    widen,
    without_warnings,
)
from scorematching.derivatives.engine.trace import Traced, Untraceable, name_of, plain
from scorematching.derivatives.ops import catalogue, nested  # noqa: F401  (fills the registry)


class LostBatchAxis(Untraceable):
    """A curved operation whose result cannot be attributed to points; a `Jet` needs no axis."""


class Tangents(Tape):
    """Carries M tangents through the model, without second derivatives."""

    differentiates = True

    def emit(self, inputs: Inputs, y: Tensor, push: Push, second: Second, axis: Axis) -> Traced:
        """Push the tangents forward."""
        single = inputs[0].single if isinstance(push, Trailing) else None
        if single is not None:
            return Traced(y, None, self, axis, push(single))
        return Traced(y, push(*[x.u for x in inputs]), self, axis)

    def opaque(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """An operation without a rule, by nested forward mode through it alone."""
        active = [i for i, a in enumerate(args) if isinstance(a, Traced)]
        if not nested.is_trusted(func):
            raise Untraceable(f"{name_of(func)}: no rule for it")
        if not active or any(isinstance(a, Traced) for a in kwargs.values()):
            raise Untraceable(f"{name_of(func)}: no rule for these arguments")
        inputs, values = [args[i] for i in active], plain(args)

        def op(*replaced: Tensor) -> Any:
            call = list(values)
            for i, value in zip(active, replaced):
                call[i] = value
            return func(*call, **kwargs)

        y = op(*[x.p for x in inputs])
        if not isinstance(y, Tensor) or y.is_complex():
            raise Untraceable(f"{name_of(func)}: more than one result, or a complex one")
        self.met.append((name_of(func), "nested jvp"))
        first, second = _nested_jvp(op, inputs)
        return self.emit(inputs, y, first, second, _rows(inputs, y, active))


def _rows(inputs: Inputs, y: Tensor, active: Sequence[int]) -> Axis:
    """Batch axis 0, if all inputs and the result have as many rows.

    None if the first argument is a constant, since the rows of the result may then be its own.
    """
    same = all(x.axis == 0 and x.p.shape[:1] == y.shape[:1] for x in inputs)
    return 0 if active[0] == 0 and y.ndim > 0 and same else None


class Pairing(Tangents):
    """Keeps each operation's second derivative until the adjoints are known.

    Args:
        x: the points ``(N, *event)``, recording derivatives.
        graphs: decompositions kept from one trace to the next.
    """

    curves = True

    def __init__(self, x: Tensor, graphs: dict[Any, Any] | None = None) -> None:
        super().__init__(x.shape[0], graphs)
        self.x = x
        self.outputs: list[Tensor] = []
        self.seconds: list[tuple[Tensor, int]] = []
        self.first_layers: list[tuple[Tensor, Tensor]] = []

    def affine(self, x: Traced, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The value of a linear layer that reads the points, detached from their graph.

        The gradient in x is needed once, here, and not again in the backward pass of the loss,
        where it would cost as much as a layer; `pair` multiplies by the weight instead.
        """
        trained = weight.requires_grad or (bias is not None and bias.requires_grad)
        if x.p is not self.x or not self.x.is_leaf or not trained:
            return super().affine(x, weight, bias)
        y = F.linear(x.p.detach(), weight, bias)
        self.first_layers.append((y, weight))
        return y

    def emit(self, inputs: Inputs, y: Tensor, push: Push, second: Second, axis: Axis) -> Traced:
        """Push the tangents forward, and keep ``(y, phi''[u, u])``."""
        if second is not None:
            if axis is None:
                raise LostBatchAxis("an operation after which the batch axis is lost")
            self.outputs.append(y)
            self.seconds.append((second(), axis))
        return super().emit(inputs, y, push, second, axis)

    def pair(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """The score and ``sum_i <lambda_i, phi_i''[u_i, u_i]>``, in one reverse pass."""
        check_depends(f.requires_grad, "log-density")
        # Copies, because torch.utils.checkpoint runs layers again during the reverse pass.
        layers, seconds = list(self.first_layers), list(self.seconds)
        wanted = [self.x, *[y for y, _ in layers], *self.outputs]
        s, *adjoints = torch.autograd.grad(
            f, wanted, torch.ones_like(f), create_graph=True, allow_unused=True
        )
        for adjoint, (_, weight) in zip(adjoints, layers):
            if adjoint is not None:
                if adjoint.dtype == weight.dtype == self.x.dtype:
                    back = adjoint @ weight
                else:  # under autocast
                    back = (adjoint.to(weight.dtype) @ weight).to(self.x.dtype)
                s = back if s is None else s + back
        check_depends(s is not None, "log-density")
        parts = [
            self._per_point(_real_product(adjoint, q), axis)
            for adjoint, (q, axis) in zip(adjoints[len(layers) :], seconds)
            if adjoint is not None
        ]
        return s, reduce(torch.add, parts) if parts else self.x.new_zeros(self.num_points)

    def _per_point(self, paired: Tensor, axis: int) -> Tensor:
        """Sums over all axes but that of the points, ``(N,)``.

        An axis with c N rows holds c rows for each point, one after the other.
        """
        if paired.ndim == 1:
            return paired.reshape(self.num_points, -1).sum(1)
        if axis == 0 and paired.ndim == 2 and paired.shape[0] == self.num_points:
            return paired.sum(1)
        return paired.movedim(axis, 0).reshape(self.num_points, -1).sum(1)


def _real_product(adjoint: Tensor, q: Tensor) -> Tensor:
    """The change of a real function along q; autograd's complex adjoints are conjugated."""
    return (adjoint.conj() * q).real if adjoint.is_complex() else adjoint * q


def run(f: Callable[[Any], Any], x: Tensor, tangents: Tensor | None, tape: Tape) -> Traced:
    """A model evaluated on traced points.

    Raises:
        Untraceable: if it does something the engine cannot follow.
    """
    points = Traced(x, tangents, tape, 0)
    points.viewed = True  # the caller holds them too, so they must not change in place
    y = f(points)
    if not isinstance(y, Traced):
        # Whatever bypasses tracing raises an error, so a plain tensor does not depend on x.
        check_depends(not isinstance(y, Tensor), "model")
        raise Untraceable(f"the model returns {type(y).__name__}, which was not traced")
    return y


def _nested_jvp(op: Any, inputs: Inputs) -> tuple[Push, Second]:
    """``phi'[u]``, and ``mean phi''[u, u]`` by one forward mode inside another."""
    primals = tuple(x.p for x in inputs)

    def first(*tangents: Tensor) -> Tensor:
        wide = [widen(t, p) for t, p in zip(tangents, primals)]
        with without_warnings():
            return vmap(lambda *u: jvp(op, primals, u)[1])(*wide)

    def second() -> Tensor:
        def one(*u: Tensor) -> Tensor:
            return jvp(lambda *z: jvp(op, z, u)[1], primals, u)[1]

        with without_warnings():
            return vmap(one)(*[widen(x.u, x.p) for x in inputs]).mean(0)

    return first, second

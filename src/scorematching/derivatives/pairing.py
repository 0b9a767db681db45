"""Tangent-adjoint pairing: curvature from first-order tangents and one reverse pass.

Let a model be a chain of operations ``y_i = phi_i(.)``, ``u_i`` the tangent along v of what
operation i reads, and ``lambda_i = df/dy_i`` the ordinary adjoint of what it writes.
Differentiating ``f(x + e v)`` twice in e, every operation adds its own second derivative and
nothing else:

    ``v' H v = sum_i <lambda_i, phi_i''[u_i, u_i]>``

Linear operations add nothing, an elementwise f adds ``lambda f''(z) u^2``, a product adds
``2 lambda u_a u_b``. So M *first-order* tangents forward and ONE reverse pass, which is the score
that is wanted anyway, replace M second-order passes; the average over the M directions is taken
inside (``mean_j u_j^2``), so the reverse pass does not grow with M. With the basis vectors for
directions, the same code gives the exact trace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vmap
from torch.nn import functional as F

from scorematching._checks import check_depends
from scorematching.derivatives import gathering, structural  # noqa: F401  (they fill RULES)
from scorematching.derivatives.tracing import (
    Bend,
    Push,
    Tape,
    Traced,
    Trailing,
    Untraceable,
    name_of,
    plain,
    widen,
)

UNTRUSTED = frozenset(
    "linalg_solve linalg_det linalg_slogdet linalg_inv lstm gru rnn_tanh rnn_relu rrelu "
    "batch_norm instance_norm layer_norm".split()
)
"""Operations whose second-order forward rule is missing, or wrong once differentiated again."""


class Tangents(Tape):
    """Carries M tangents through the model, and leaves second derivatives alone."""

    differentiates = True

    def emit(
        self, inputs: Sequence[Traced], y: Tensor, act: Push, bend: Bend | None, axis: int | None
    ) -> Traced:
        """Push the tangents forward."""
        if isinstance(act, Trailing) and inputs[0].one is not None:
            return Traced(y, None, self, axis, one=act(inputs[0].one))
        return Traced(y, act(*[x.u for x in inputs]), self, axis)

    def generic(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Traced:
        """An operation in no table, by nested forward mode through it alone."""
        active = [i for i, a in enumerate(args) if isinstance(a, Traced)]
        if not active or any(isinstance(a, Traced) for a in kwargs.values()):
            raise Untraceable(f"{name_of(func)}: no rule for these arguments")
        if name_of(func) in UNTRUSTED:
            raise Untraceable(f"{name_of(func)}: no second-order rule to trust")
        inputs = [args[i] for i in active]
        values = plain(args)

        def op(*replaced: Tensor) -> Any:
            call = list(values)
            for i, value in zip(active, replaced):
                call[i] = value
            return func(*call, **kwargs)

        y = op(*[x.p for x in inputs])
        if not isinstance(y, Tensor):
            raise Untraceable(f"{name_of(func)}: more than one result")
        # With a constant in front (torch.inner(w, x)), rows may be its own.
        rows = (
            active[0] == 0
            and y.ndim > 0
            and all(x.axis == 0 and x.p.shape[:1] == y.shape[:1] for x in inputs)
        )
        first, second = _nested_jvp(op, inputs)
        return self.emit(inputs, y, first, second, 0 if rows else None)


class Pairing(Tangents):
    """Keeps each operation's second derivative until the adjoints are known.

    Args:
        x: the points ``(N, *event)``, recording derivatives.
    """

    curves = True

    def __init__(self, x: Tensor) -> None:
        """Start an empty tape."""
        super().__init__(x.shape[0])
        self.x = x
        self.outputs: list[Tensor] = []
        self.bends: list[tuple[Tensor, int]] = []
        self.first_layers: list[tuple[Tensor, Tensor]] = []

    def affine(self, x: Traced, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The value of a linear layer, of points with their graph cut off.

        A gradient in x is wanted once, here, and not again in the backward pass of the loss,
        where it would cost as much as a layer; so the last step back to x is taken by hand.
        """
        if x.p is not self.x or not self.x.is_leaf:
            return super().affine(x, weight, bias)
        y = F.linear(x.p.detach(), weight, bias)
        if not y.requires_grad:
            y.requires_grad_()  # a frozen layer
        self.first_layers.append((y, weight))
        return y

    def emit(
        self, inputs: Sequence[Traced], y: Tensor, act: Push, bend: Bend | None, axis: int | None
    ) -> Traced:
        """Push the tangents forward, and remember ``(y, phi''[u, u])``."""
        if bend is not None:
            if axis is None:
                raise Untraceable("an operation after which the batch axis is lost")
            self.outputs.append(y)
            self.bends.append((bend(), axis))
        return super().emit(inputs, y, act, bend, axis)

    def pair(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """The score and ``sum_i <lambda_i, phi_i''[u_i, u_i]>``, in one reverse pass."""
        read = [y for y, _ in self.first_layers]
        check_depends(f.requires_grad, "log-density")
        ones, wanted = torch.ones_like(f), [self.x, *read, *self.outputs]
        s, *adjoints = torch.autograd.grad(f, wanted, ones, create_graph=True, allow_unused=True)
        for adjoint, (_, weight) in zip(adjoints, self.first_layers):
            if adjoint is not None:
                s = adjoint @ weight if s is None else s + adjoint @ weight
        check_depends(s is not None, "log-density")
        parts = [
            self._per_point(adjoint * q, axis)
            for adjoint, (q, axis) in zip(adjoints[len(read) :], self.bends)
            if adjoint is not None
        ]
        return s, reduce(torch.add, parts) if parts else self.x.new_zeros(self.num_points)

    def _per_point(self, paired: Tensor, axis: int) -> Tensor:
        """Sums over everything but the points, ``(N,)``."""
        if paired.ndim == 1:
            return paired.reshape(self.num_points, -1).sum(1)
        if axis == 0 and paired.ndim == 2 and paired.shape[0] == self.num_points:
            return paired.sum(1)
        return paired.movedim(axis, 0).reshape(self.num_points, -1).sum(1)


class Jet(Tangents):
    """Carries the mean second derivative forward as well: for many outputs, and for traces.

    ``second(y) = phi'[second(x)] + phi''[u, u]``, with no reverse pass at all.
    """

    curves = True

    def emit(
        self, inputs: Sequence[Traced], y: Tensor, act: Push, bend: Bend | None, axis: int | None
    ) -> Traced:
        """Push the tangents and the second derivative forward."""
        z = super().emit(inputs, y, act, bend, axis)
        if any(x.s is not None for x in inputs):
            z.s = act(*[_stacked(x) for x in inputs])[0]
        if bend is not None:
            z.s = bend() if z.s is None else z.s + bend()
        return z


def run(f: Callable[[Any], Any], x: Tensor, tangents: Tensor | None, tape: Tape) -> Traced:
    """A model evaluated on traced points.

    Raises:
        Untraceable: if it does something the engine cannot follow.
    """
    points = Traced(x, tangents, tape, 0)
    points.viewed = True  # the caller has them too
    y = f(points)
    if not isinstance(y, Traced):
        check_depends(not isinstance(y, Tensor), "model")
        raise Untraceable(f"the model returns {type(y).__name__}")
    if y.kink:
        tape.kinks.append(y.kink)
    return y


def _stacked(x: Traced) -> Tensor:
    """The second derivative of x as one tangent, zero where it has none."""
    return torch.zeros_like(x.p)[None] if x.s is None else x.s[None]


def _nested_jvp(op: Any, inputs: Sequence[Traced]) -> tuple[Push, Bend]:
    """``phi'[u]``, and ``mean phi''[u, u]`` by one forward mode inside another."""
    primals = tuple(x.p for x in inputs)

    def first(*tangents: Tensor) -> Tensor:
        wide = [widen(t, p) for t, p in zip(tangents, primals)]
        with _quiet():
            return vmap(lambda *u: jvp(op, primals, u)[1])(*wide)

    def second() -> Tensor:
        def one(*u: Tensor) -> Tensor:
            return jvp(lambda *z: jvp(op, z, u)[1], primals, u)[1]

        with _quiet():
            return vmap(one)(*[widen(x.u, x.p) for x in inputs]).mean(0)

    return first, second


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch's forward mode warns of its own decompositions, scripted or slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield

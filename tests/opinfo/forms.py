"""Log-densities around one operation of torch, from the samples of torch's own tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from tests.zoo.entry import Model

MAX_SIZE = 512
"""Largest number of entries of an operation's input."""

DIM, POINTS = 2, 2
STEP = 0.15
"""How far an operation's inputs move with the points."""


@dataclass(frozen=True)
class Case:
    """One operation, one way to call it, one sample of its arguments."""

    call: Callable[..., Any]
    sample: SampleInput
    seeded: bool = False
    everywhere: bool = False

    def __call__(self, first: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> list[Tensor]:
        """The floating-point results of the operation."""
        if not self.seeded:
            return _floats(self.call(first, *rest, **named))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _floats(self.call(first, *rest, **named))


def operations() -> list[OpInfo]:
    """Every operation that torch differentiates in float64."""
    return [op for op in op_db if op.supports_autograd and torch.float64 in op.dtypes]


Bind = Callable[[SampleInput], Callable[..., Any]]
"""How to call an operation with the arguments of a sample."""


def forms(op: OpInfo) -> Iterator[tuple[str, Bind]]:
    """The ways to call an operation: in place where it can, by keyword otherwise."""
    method, inplace = op.get_method(), op.get_inplace()
    yield "function", lambda sample: op.op
    if method is not None:
        yield "method", lambda sample: method
    if inplace is not None:
        changed = lambda z, *rest, **named: inplace(z.clone(), *rest, **named)  # noqa: E731
        yield "in place", lambda sample: changed
    else:
        yield "keyword", lambda sample: _by_keyword(op, sample)


def _by_keyword(op: OpInfo, sample: SampleInput) -> Callable[..., Any]:
    """The operation with all arguments by name; found by trying, on plain tensors."""
    first, rest, named = _arguments(sample)
    for names in _argument_names(op):
        call = partial(_call_named, op.op, names)
        if len(names) > len(rest):
            with suppress(TypeError, RuntimeError, ValueError):
                call(first, *rest, **named)
                return call
    raise TypeError("its arguments have no names")


def _call_named(op: Callable[..., Any], names: list[str], *values: Any, **named: Any) -> Any:
    return op(**dict(zip(names, values)), **named)


def _argument_names(op: OpInfo) -> Iterator[list[str]]:
    """Names from the signature of a Python function, or from the schemas of ATen operations."""
    with suppress(TypeError, ValueError):
        yield list(inspect.signature(op.op).parameters)
    packet = getattr(torch.ops.aten, op.aten_name or op.name.replace(".", "_"), None)
    for overload in packet.overloads() if packet else []:
        names = [a.name for a in getattr(packet, overload)._schema.arguments]
        yield ["input" if name == "self" else name for name in names]
        yield names


def samples(op: OpInfo) -> list[SampleInput]:
    """At most three samples whose first argument is made of small float64 tensors."""
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for sample in op.sample_inputs("cpu", torch.float64, requires_grad=False):
            size = sum(t.numel() for t in _tensors(sample.input))
            found += [sample] if 0 < size <= MAX_SIZE else []
            if len(found) == 40:
                break
    middle = found[len(found) // 2 : len(found) // 2 + 1] if len(found) > 2 else []
    return [*found[:1], *middle, *found[-1:]][: len(found)]


def build(call: Callable[..., Any], sample: SampleInput, everywhere: bool) -> Model:
    """A log-density of points that move the sample's first argument, or all its arguments."""
    case = Case(call, sample, everywhere=everywhere)
    once, again = case(*_arguments(sample)), case(*_arguments(sample))
    same = all(a.equal(b) for a, b in zip(once, again))
    density = Around(case if same else replace(case, seeded=True))
    x = torch.randn(POINTS, DIM, generator=torch.Generator().manual_seed(2))
    return Model(density, 0.5 * x, tuple(density.parameters()))


class Around(nn.Module):
    """``<c, op(z)> - |x|^2 / 2`` with z affine in x, one row after the other."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        moved = _tensors(_arguments(case.sample) if case.everywhere else case.sample.input)
        generator = torch.Generator().manual_seed(6)
        size = sum(t.numel() for t in moved)
        self.weight = nn.Parameter(STEP * torch.randn(DIM, size, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Log-density ``(N, D) -> (N,)``."""
        moves = x @ self.weight
        values = torch.stack([self.value(row) for row in moves.unbind(0)])
        return values - 0.5 * x.square().sum(-1)

    def value(self, move: Tensor) -> Tensor:
        """One number for one point."""
        first, rest, named = _arguments(self.case.sample)
        if self.case.everywhere:
            first, rest, named = _moved((first, rest, named), move)
        else:
            first = _moved(first, move)
        return sum((_weighted(y) for y in self.case(first, rest, named)), torch.zeros(()))


def _weighted(y: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)
    return (weights * y).sum() / y.numel() ** 0.5


def _moved(tree: Any, move: Tensor) -> Any:
    """The tree with the next entries of `move` added to each of its float64 tensors."""
    leaves, structure = pytree.tree_flatten(tree)
    start = 0
    for i, leaf in enumerate(leaves):
        if _is_float(leaf):
            leaves[i] = leaf + move[start : start + leaf.numel()].reshape(leaf.shape)
            start += leaf.numel()
    return pytree.tree_unflatten(leaves, structure)


def _arguments(sample: SampleInput) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return sample.input, sample.args, sample.kwargs


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if _is_float(leaf)]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == torch.float64


def _floats(out: Any) -> list[Tensor]:
    """The floating-point tensors of a result, complex ones as pairs."""
    leaves = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
    real = [torch.view_as_real(t) if t.is_complex() else t for t in leaves]
    return [t for t in real if t.is_floating_point()]

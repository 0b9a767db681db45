"""Log-densities around one operation of torch, from the samples of torch's own tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput, UnaryUfuncInfo
from torch.utils import _pytree as pytree

from tests.zoo.entry import Model

MAX_SIZE = 1024
"""Largest number of entries of an operation's input."""

DIM, POINTS = 2, 2
STEPS = (0.15, 0.02)
"""How far an operation's inputs move with the points: less where it is not smooth far enough."""

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Site:
    """A sample of an operation's arguments, and how points move them.

    Args:
        op: the operation.
        sample: its arguments.
        everywhere: whether all arguments move with the points, or the first alone.
        step: how far they move.
    """

    op: OpInfo
    sample: SampleInput
    everywhere: bool = False
    step: float = STEPS[0]

    def model(self, call: Callable[..., Any]) -> Model:
        """A log-density around the operation, called in one of its forms."""
        inner = partial(self.results, call)
        once, again = inner(*self.arguments), inner(*self.arguments)
        same = all(a.equal(b) for a, b in zip(once, again))
        density = Around(self, inner if same else partial(_seeded, inner))
        x = torch.randn(POINTS, DIM, generator=torch.Generator().manual_seed(2))
        return Model(density, 0.5 * x, tuple(density.parameters()))

    @property
    def arguments(self) -> Arguments:
        """First argument, other positional arguments, keyword arguments."""
        return self.sample.input, self.sample.args, self.sample.kwargs

    def results(self, call: Callable[..., Any], *arguments: Any) -> list[Tensor]:
        """The results that can be differentiated, as torch's own tests choose them."""
        first, rest, named = arguments
        out = self.op.gradcheck_wrapper(call, first, *rest, **named)
        return _floats(self.sample.output_process_fn_grad(out))

    def moved(self, move: Tensor) -> Arguments:
        """The arguments for one point."""
        first, rest, named = self.arguments
        if self.everywhere:
            return _moved((first, rest, named), move)
        return _moved(first, move), rest, named


def _seeded(call: Callable[..., list[Tensor]], *arguments: Any) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return call(*arguments)


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
    first, rest, named = sample.input, sample.args, sample.kwargs
    for names in _argument_names(op):
        call = update_wrapper(partial(_call_named, op.op, names), op.op)
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
            if isinstance(op, UnaryUfuncInfo):
                sample.input = sample.input.flatten()[:4]  # fewer near the ends of its domain
            size = sum(t.numel() for t in _tensors(sample.input))
            found += [sample] if 0 < size <= MAX_SIZE else []
            if len(found) == 40:
                break
    middle = found[len(found) // 2 : len(found) // 2 + 1] if len(found) > 2 else []
    return [*found[:1], *middle, *found[-1:]][: len(found)]


class Around(nn.Module):
    """``<c, op(z)> - |x|^2 / 2`` with z affine in x, one row after the other."""

    def __init__(self, site: Site, call: Callable[..., list[Tensor]]) -> None:
        super().__init__()
        self.site, self.call = site, call
        moved = _tensors(site.arguments if site.everywhere else site.sample.input)
        size = sum(t.numel() for t in moved)
        weight = torch.randn(DIM, size, generator=torch.Generator().manual_seed(6))
        self.weight = nn.Parameter(site.step * weight)

    def forward(self, x: Tensor) -> Tensor:
        """Log-density ``(N, D) -> (N,)``."""
        moves = x @ self.weight
        values = torch.stack([self.value(row) for row in moves.unbind(0)])
        return values - 0.5 * x.square().sum(-1)

    def value(self, move: Tensor) -> Tensor:
        """One number for one point; larger for shorter steps, to keep its slope."""
        results = self.call(*self.site.moved(move))
        total = sum((_weighted(y) for y in results), torch.zeros(()))
        return total * (STEPS[0] / self.site.step)


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


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if _is_float(leaf)]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == torch.float64


def _floats(out: Any) -> list[Tensor]:
    """The floating-point tensors of a result, complex ones as pairs."""
    leaves = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
    real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in leaves]
    return [t for t in real if t.is_floating_point()]

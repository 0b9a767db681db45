"""Gradients of equal layers by one batched product.

The gradient of a weight is a product that no other part of a step reads. With the few rows of a
batch it is too small to fill a GPU. So products of equal shapes whose results are only returned
become one batched product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from scorematching.training.executors.precision import convert
from scorematching.training.executors.products import MANY_ROWS, finish, view

aten = torch.ops.aten

PASSED_ON = (aten.t.default, aten.detach.default, aten.add.Tensor, convert)
"""Operations between a product and the gradient that is returned."""


def batch_gradients(module: GraphModule, unrounded: bool = False) -> None:
    """Compute products of equal shapes that are only returned by one batched product, in place.

    Args:
        module: the step.
        unrounded: leave results of products in bfloat16 in float32, in which terms are added, where
            they are read in float32 only. That needs a GPU, and saves passes over all gradients.
    """
    unrounded &= "dtype" in aten.bmm.overloads()  # since torch 2.8
    groups: dict[Any, list[Node]] = {}
    for node in module.graph.nodes:
        if node.target is aten.mm.default and _is_returned(node):
            groups.setdefault(_shapes(node), []).append(node)
    for (_, rows), group in groups.items():
        if len(group) > 1 and rows < MANY_ROWS:
            _batch(module.graph, group, unrounded and all(map(_is_widened, group)))
    finish(module)


def _is_returned(node: Node) -> bool:
    """Whether a result is returned, and otherwise only added to others that are."""
    return all(
        user.op == "output" or (user.target in PASSED_ON and _is_returned(user))
        for user in node.users
    )


def _shapes(product: Node) -> tuple[Any, int]:
    """What products of one batch have in common, and the number of terms in their sums."""
    factors = [view(factor) for factor in product.args]
    values = [factor.node.meta["val"] for factor in factors]
    same = tuple((f.transposed, v.shape, v.dtype) for f, v in zip(factors, values))
    return same, values[1].shape[int(factors[1].transposed)]


def _is_widened(product: Node) -> bool:
    """Whether a result in bfloat16 is read in float32 only."""
    return all(n.target is convert and n.args[1] == torch.float32 for n in product.users)


def _batch(graph: Graph, products: Sequence[Node], unrounded: bool) -> None:
    """Replace products by one of their stacked factors."""
    factors = tuple(_stack(graph, [node.args[i] for node in products]) for i in (0, 1))
    whole = (
        graph.call_function(aten.bmm.dtype, (*factors, torch.float32))
        if unrounded
        else graph.call_function(aten.bmm.default, factors)
    )
    for i, product in enumerate(products):
        part = graph.call_function(aten.select.int, (whole, 0, i))
        for read in list(product.users) if unrounded else [product]:
            read.replace_all_uses_with(part)


def _stack(graph: Graph, factors: Sequence[Any]) -> Node:
    """Matrices along a new first axis; they are stacked as they lie in memory."""
    views = [view(factor) for factor in factors]
    stack = graph.call_function(aten.stack.default, ([each.node for each in views],))
    return graph.call_function(aten.mT.default, (stack,)) if views[0].transposed else stack

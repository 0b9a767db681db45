"""Fewer and larger matrix products in a flattened step.

A step multiplies many matrices by the same weights: a layer's values and its tangents on the way
forward, their gradients on the way back. On a GPU one product of twice as many rows takes much less
time than two products. So products with the same right factor, none of which needs the result of
another, become one product of their stacked rows. The gradient of a weight is a sum of products
``a' b``, which becomes one product too: ``a' b + c' d = [a; c]' [b; d]``. Products with many rows
fill a GPU by themselves, and stacking would only copy them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.tools_common import legalize_graph

aten = torch.ops.aten

MANY_ROWS = 4096
"""Factors with as many rows are not stacked: those of exact traces, but not of a few directions."""

LONG_RUN = 3 * 10**16
"""Multiplications of a run from which on large products are compiled, too. The minute it takes is
won back there: an H200 needs 66 ms for an exact step of the paper's flow with four hidden layers,
which has 6.1e12 multiplications, and 53 ms where what lies between the products is fused."""


class Matrix(NamedTuple):
    """A node of the graph, or its transpose."""

    node: Node
    transposed: bool


class Term(NamedTuple):
    """One term of a sum of matrices; ``a' b`` if a and b are given."""

    matrix: Matrix
    a: Node | None = None
    b: Node | None = None


def merge_products(module: GraphModule) -> None:
    """Merge products of matrices that share a factor or are added, in place."""
    graph = module.graph
    for root in list(_roots(graph)):
        _merge_sum(graph, root, _terms(Matrix(root, False), inside=False))
    for group in _find_groups(graph):
        _stack_rows(graph, group)
    finish(module)


def finish(module: GraphModule) -> None:
    """Sort the nodes of a changed graph, drop those that nothing reads, and make its code anew."""
    legalize_graph(module)
    module.graph.eliminate_dead_code()
    module.recompile()


def saves_time(module: GraphModule, steps: int) -> bool:
    """Whether so many steps save more time by being compiled than compilation takes."""
    large, total = _multiplications(module)
    return 2 * large <= total or total * steps >= LONG_RUN


def _multiplications(module: GraphModule) -> tuple[int, int]:
    """How many of them are in products with many rows, as in exact score matching, and in all.

    Such products fill a device by themselves: merging them does not save time. Of convolutions
    that is not known, and a step with some counts as one without large products.
    """
    if any(node.target is aten.convolution.default for node in module.graph.nodes):
        return 0, 0
    large, total = 0, 0
    for node in filter(is_product, module.graph.nodes):
        left, (rows, terms) = view(node.args[-2]), node.args[-2].meta["val"].shape
        points = terms if left.transposed else rows  # the gradient of a weight sums over points
        work = rows * terms * node.meta["val"].shape[1]
        large, total = large + work * (points >= MANY_ROWS), total + work
    return large, total


def view(node: Any) -> Matrix:
    """What a node shows: detached and transposed nodes are views of another."""
    transposed = False
    while node.target in (aten.detach.default, aten.t.default):
        transposed ^= node.target is aten.t.default
        node = node.args[0]
    return Matrix(node, transposed)


# ---------------------------------------------------------------------------- a common factor


def _find_groups(graph: Graph) -> list[list[Node]]:
    """Products with the same right factor, none of which needs the result of another.

    Groups are formed one product after the other. A product joins the latest group of its factor
    unless that would make the graph cyclic, where every group counts as one node.
    """
    latest: dict[Matrix, list[Node]] = {}
    member_of: dict[Node, list[Node]] = {}
    groups: list[list[Node]] = []
    for node in graph.nodes:
        if not is_product(node) or view(node.args[-2]).transposed or _has_many_rows(node.args[-2]):
            continue
        factor = view(node.args[-1])
        group = latest.get(factor)
        if group is None or _needs([node], group, member_of) or _needs(group, [node], member_of):
            group = latest[factor] = []
            groups.append(group)
        group.append(node)
        member_of[node] = group
    return [group for group in groups if len(group) > 1]


def is_product(node: Node) -> bool:
    """Whether a node multiplies two matrices, and perhaps adds a bias."""
    plain_addmm = node.target is aten.addmm.default and not node.kwargs  # neither alpha nor beta
    return node.target is aten.mm.default or plain_addmm


def _has_many_rows(factor: Any) -> bool:
    return bool(factor.meta["val"].shape[0] >= MANY_ROWS)


def _needs(nodes: list[Node], wanted: list[Node], member_of: dict[Node, list[Node]]) -> bool:
    """Whether one of the nodes reads, directly or not, the result of one of the wanted nodes."""
    seen: set[Node] = set()
    waiting = _inputs(nodes)
    while waiting:
        node = waiting.pop()
        if node in wanted:
            return True
        if node not in seen:
            together = member_of.get(node, [node])
            seen.update(together)
            waiting += _inputs(together)
    return False


def _inputs(nodes: Iterable[Node]) -> list[Node]:
    return [read for node in nodes for read in node.all_input_nodes]


def _stack_rows(graph: Graph, products: Sequence[Node]) -> None:
    """Replace products with the same right factor by one."""
    lefts: list[Any] = [product.args[-2] for product in products]
    sizes = [left.meta["val"].shape[0] for left in lefts]
    whole = graph.call_function(aten.mm.default, (_join(graph, lefts), products[0].args[-1]))
    rows = graph.call_function(aten.split_with_sizes.default, (whole, sizes))
    for i, product in enumerate(products):
        part = graph.call_function(operator.getitem, (rows, i))
        if product.target is aten.addmm.default:
            part = graph.call_function(aten.add.Tensor, (part, product.args[0]))
        product.replace_all_uses_with(part, propagate_meta=True)


def _join(graph: Graph, matrices: Sequence[Any]) -> Node:
    """The rows of several matrices, one after the other."""
    joined = graph.call_function(aten.cat.default, (list(matrices), 0))
    values = [matrix.meta["val"] for matrix in matrices]
    rows = sum(value.shape[0] for value in values)
    joined.meta["val"] = values[0].new_empty(rows, values[0].shape[1], device="meta")
    return joined


# ---------------------------------------------------------------------------- sums of products


def _roots(graph: Graph) -> Iterator[Node]:
    """Sums of matrices that are not themselves terms of a sum."""
    for node in graph.nodes:
        if _is_sum(node) and not any(_is_term(user) for user in node.users):
            yield node


def _is_sum(node: Node) -> bool:
    if node.target is not aten.add.Tensor or node.kwargs:
        return False
    shapes = [x.meta["val"].shape for x in (node, *node.args) if isinstance(x, Node)]
    return len(shapes) == 3 and len(shapes[0]) == 2 and len(set(shapes)) == 1


def _is_term(user: Node) -> bool:
    """Whether a node that reads a sum passes it on to another sum, perhaps transposed."""
    while user.target is aten.t.default and len(user.users) == 1:
        user = next(iter(user.users))
    return _is_sum(user)


def _terms(matrix: Matrix, inside: bool = True) -> list[Term]:
    """The terms of a sum; a matrix that something else reads as well is a term as it is."""
    node, transposed = matrix
    arguments: Any = node.args
    if _is_zero(node):
        return []
    if inside and len(node.users) > 1:
        return [Term(matrix)]
    if node.target in (aten.t.default, aten.detach.default):
        return _terms(Matrix(arguments[0], transposed ^ (node.target is aten.t.default)))
    if _is_sum(node):
        return [term for summand in arguments for term in _terms(Matrix(summand, transposed))]
    if node.target is not aten.mm.default:
        return [Term(matrix)]
    a, b = map(view, arguments)
    if transposed:
        a, b = Matrix(b.node, not b.transposed), Matrix(a.node, not a.transposed)
    stacks = a.transposed and not b.transposed and not _has_many_rows(a.node)
    return [Term(matrix, a.node, b.node) if stacks else Term(matrix)]


def _is_zero(node: Node) -> bool:
    """Whether a node is the zero gradient that autograd makes where a part of the loss has none."""
    source = node.args[0] if node.target is aten.expand.default else node
    return isinstance(source, Node) and source.target is aten.new_zeros.default


def _merge_sum(graph: Graph, root: Node, terms: Sequence[Term]) -> None:
    """Compute the terms ``a' b`` of a sum as one product and add the others.

    Where only the transposed sum is read, that is computed, by ``b' a``: optimisers want gradients
    with the memory layout of their parameters.
    """
    products = [term for term in terms if term.a is not None]
    if len(products) < 2:
        return
    flipped = all(user.target is aten.t.default for user in root.users)
    a, b = ([term[i] for term in products] for i in ((2, 1) if flipped else (1, 2)))
    left = graph.call_function(aten.t.default, (_join(graph, a),))
    total = graph.call_function(aten.mm.default, (left, _join(graph, b)))
    for node, transposed in [term.matrix for term in terms if term.a is None]:
        added = graph.call_function(aten.t.default, (node,)) if transposed != flipped else node
        total = graph.call_function(aten.add.Tensor, (total, added))
    for read in list(root.users) if flipped else [root]:
        total.meta = dict(read.meta)
        read.replace_all_uses_with(total)

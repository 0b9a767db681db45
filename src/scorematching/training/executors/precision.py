"""Matrix products of reduced precision in a flattened step.

With ``torch.set_float32_matmul_precision("medium")`` torch may round the factors of float32
products to bfloat16, but on a GPU it rounds them to tf32 only. Compiled steps do what that setting
says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from scorematching.training.executors.products import finish, is_product, view

aten = torch.ops.aten
convert = torch.ops.prims.convert_element_type.default


def allows_bfloat16(module: GraphModule) -> bool:
    """Whether torch's setting and the graph allow for products in bfloat16.

    The graph must not compute in double precision anywhere: who asks for that wants the digits.
    """
    values = (node.meta.get("val") for node in module.graph.nodes)
    wide = any(isinstance(v, torch.Tensor) and v.dtype == torch.float64 for v in values)
    return torch.get_float32_matmul_precision() == "medium" and not wide


def round_products(module: GraphModule) -> None:
    """Round the factors and results of float32 matrix products to bfloat16, in place.

    Terms are added in float32 inside a product. A matrix that is a factor of several products, as
    it is or transposed, is rounded once. Products that autocast has in bfloat16 stay as they are.
    """
    graph, rounded = module.graph, dict[Node, Node]()
    for node in [node for node in graph.nodes if is_product(node) and _is_float32(node)]:
        left, right = (_rounded(graph, factor, rounded) for factor in node.args[-2:])
        product = graph.call_function(aten.mm.default, (left, right))
        result = graph.call_function(convert, (product, torch.float32))
        if node.target is aten.addmm.default:
            result = graph.call_function(aten.add.Tensor, (result, node.args[0]))
        node.replace_all_uses_with(result, propagate_meta=True)
    finish(module)


def _is_float32(product: Node) -> bool:
    return bool(view(product.args[-1]).node.meta["val"].dtype == torch.float32)


def _rounded(graph: Graph, factor: Any, rounded: dict[Node, Node]) -> Node:
    node, transposed = view(factor)
    if node not in rounded:
        rounded[node] = graph.call_function(convert, (node, torch.bfloat16))
        rounded[node].meta["val"] = node.meta["val"].to("meta", torch.bfloat16)
    return graph.call_function(aten.t.default, (rounded[node],)) if transposed else rounded[node]

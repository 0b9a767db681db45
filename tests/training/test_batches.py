"""Batched products against the graph they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from scorematching.training.executors.batches import batch_gradients
from scorematching.training.executors.precision import round_products
from scorematching.training.executors.products import MANY_ROWS, merge_products

aten = torch.ops.aten


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def counts(graph: GraphModule) -> tuple[int, int]:
    """The numbers of products and of batched ones."""
    targets = [node.target for node in graph.graph.nodes]
    return targets.count(aten.mm.default), targets.count(aten.bmm.default)


def batched(function: Callable[..., Any], *inputs: Tensor) -> tuple[int, int]:
    """The numbers of products afterwards; results and their layouts stay as they are."""
    graph = make_fx(function)(*inputs)
    expected = graph(*inputs)
    batch_gradients(graph)
    for found, wanted in zip(graph(*inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        assert found.stride() == wanted.stride()
    return counts(graph)


def test_equal_shapes_become_one_product() -> None:
    def gradients(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b, b.t() @ c, c.t() @ a

    assert batched(gradients, *(normal(5, 3, seed=i) for i in range(3))) == (0, 1)


def test_other_shapes_and_layouts_stay_apart() -> None:
    def gradients(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b, b.t() @ c, a @ b.t(), c.t() @ c, b.t() @ a

    assert batched(gradients, normal(4, 4), normal(4, 4, seed=1), normal(4, 2)) == (3, 1)


def test_results_that_something_else_reads_stay_as_they_are() -> None:
    def step(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        first = a.t() @ b
        return first, b.t() @ first.sin(), b.t() @ a, a.t() @ a

    assert batched(step, normal(4, 4), normal(4, 4, seed=1)) == (1, 1)


def test_sums_of_results() -> None:
    def gradients(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b + a, (b.t() @ a).t()

    assert batched(gradients, normal(3, 3), normal(3, 3, seed=1)) == (0, 1)


@pytest.mark.parametrize(("rows", "expected"), [(MANY_ROWS - 1, (0, 1)), (MANY_ROWS, (2, 0))])
def test_many_rows_fill_a_device_by_themselves(rows: int, expected: tuple[int, int]) -> None:
    def gradients(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b, b.t() @ a

    assert batched(gradients, normal(rows, 2), normal(rows, 2, seed=1)) == expected


def test_after_merging_and_rounding() -> None:
    """Sums of products are merged first, so that a batch has one product for each gradient."""

    def gradients(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b + b.t() @ c, c.t() @ b + a.t() @ a

    inputs = [normal(5, 3, seed=i).float() for i in range(3)]
    graph = make_fx(gradients)(*inputs)
    expected = graph(*inputs)
    for rewrite in (merge_products, round_products, batch_gradients):
        rewrite(graph)
    assert counts(graph) == (0, 1)
    for found, wanted in zip(graph(*inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)


def test_results_that_are_not_rounded() -> None:
    """Gradients are read in float32, in which a GPU adds their terms."""

    def gradients(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b, b.t() @ a

    inputs = [normal(50, 4, seed=i).float() for i in range(2)]
    graph = make_fx(gradients)(*inputs)
    round_products(graph)
    batch_gradients(graph, unrounded=True)
    assert counts(graph) == (0, 0)
    targets = [node.target for node in graph.graph.nodes]
    assert targets.count(aten.bmm.dtype) == 1
    read = next(n for n in graph.graph.nodes if n.op == "output").all_input_nodes
    assert {n.target for n in read} == {aten.select.int}  # none is converted


def test_results_that_are_read_in_bfloat16_are_rounded() -> None:
    def gradients(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b, b.t() @ a

    inputs = [normal(50, 4, seed=i).bfloat16() for i in range(2)]
    graph = make_fx(gradients)(*inputs)
    batch_gradients(graph, unrounded=True)
    assert counts(graph) == (0, 1)


@pytest.mark.gpu
def test_sums_are_not_rounded_on_a_gpu() -> None:
    def gradients(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.t() @ b, b.t() @ a

    inputs = [normal(50, 4, seed=i).float().cuda() for i in range(2)]
    graph = make_fx(gradients)(*inputs)
    round_products(graph)
    batch_gradients(graph, unrounded=True)
    a, b = (x.bfloat16().double() for x in inputs)
    for found, wanted in zip(graph(*inputs), gradients(a, b), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)

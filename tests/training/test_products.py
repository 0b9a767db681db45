"""Merged products against the graph they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import scorematching as sm
from scorematching.training.executors.products import (
    LONG_RUN,
    MANY_ROWS,
    merge_products,
    saves_time,
)

aten = torch.ops.aten


def products(graph: GraphModule) -> int:
    targets = [node.target for node in graph.graph.nodes]
    return targets.count(aten.mm.default) + targets.count(aten.addmm.default)


def merged(function: Callable[..., Any], *inputs: Any) -> tuple[int, int]:
    """The numbers of products before and after, whose results are the same."""
    graph = make_fx(function)(*inputs)
    expected, before = pytree.tree_leaves(graph(*inputs)), products(graph)
    merge_products(graph)
    for found, wanted in zip(pytree.tree_leaves(graph(*inputs)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    return before, products(graph)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: sm.models.MLPDensity(dim=4, hidden=(6, 5)),
    "nice": lambda: sm.models.NICE(dim=4, hidden=(6, 5), num_couplings=2),
}


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_a_step(name: str, num: int) -> None:
    model, x = MODELS[name]().double(), normal(7, 4)
    objective = sm.SlicedScoreMatchingVR(num_projections=num)
    v = objective.draw(x, torch.Generator().manual_seed(1)).as_subclass(Tensor)
    names = [name for name, _ in model.named_parameters()]

    def step(values: list[Tensor], x: Tensor, v: Tensor) -> Any:
        leaves = [value.detach().requires_grad_() for value in values]
        called = lambda x: functional_call(model, dict(zip(names, leaves)), (x,))  # noqa: E731
        loss = objective.loss(sm.LogDensityField(called, check_smoothness=False), x, v).mean()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return loss.detach(), [g for g in grads if g is not None]

    before, after = merged(step, [p.detach() for p in model.parameters()], x, v)
    assert after <= 0.65 * before


def test_products_that_need_each_other_stay_apart() -> None:
    """Merging both pairs would make each product wait for the other."""

    def crossed(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ a).sin() @ b, (y @ b).sin() @ a

    assert merged(crossed, normal(3, 3), normal(3, 3, seed=1), normal(2, 3), normal(4, 3)) == (4, 3)


def test_a_chain_through_one_weight() -> None:
    assert merged(lambda w, x: x @ w @ w, normal(3, 3), normal(2, 3)) == (2, 2)


def test_biases_and_unequal_rows() -> None:
    def layer(w: Tensor, c: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.addmm(c, x, w), y @ w, torch.addmm(c, y, w, alpha=2)

    assert merged(layer, normal(3, 5), normal(5), normal(2, 3), normal(4, 3)) == (3, 2)


def test_sums() -> None:
    def total(a: Tensor, b: Tensor, c: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        shared = a.t() @ b
        return (b.t() @ a).t() + (c.t() @ c + rest).t() + a.t() @ c, shared + rest

    assert merged(total, *(normal(4, 4, seed=i) for i in range(4))) == (4, 2)


def test_a_product_that_is_read_twice_is_computed_once() -> None:
    def twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        p = a.t() @ b
        return p + b.t() @ b, p.sin()

    assert merged(twice, normal(4, 3), normal(4, 3, seed=1)) == (2, 2)


def test_products_with_many_rows_stay_as_they_are() -> None:
    def both(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ w, y @ w

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        return x.t() @ x + y.t() @ y

    few, many = normal(3, 2), normal(MANY_ROWS, 2)
    assert merged(both, normal(2, 2), few, many) == (2, 2)
    assert merged(both, normal(2, 2), few, many[:-1]) == (2, 1)
    assert merged(gradient, few, many) == (2, 2)
    assert merged(gradient, few, many[:-1]) == (2, 1)


@pytest.mark.parametrize("objective", [sm.DenoisingScoreMatching(0.1), sm.SlicedScoreMatchingVR()])
def test_gradients_have_the_layout_of_parameters(objective: sm.Objective) -> None:
    """Fused optimisers refuse others."""
    model, x = MODELS["nice"](), normal(7, 4).float()
    noise = objective.draw(x, torch.Generator().manual_seed(1))
    names = [name for name, _ in model.named_parameters()]

    def step(values: list[Tensor], x: Tensor, noise: Tensor) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in values]
        called = lambda x: functional_call(model, dict(zip(names, leaves)), (x,))  # noqa: E731
        field = sm.LogDensityField(called, check_smoothness=False)
        loss = objective.loss(field, x, noise).mean()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [g for g in grads if g is not None]

    inputs = [p.detach() for p in model.parameters()], x, noise.as_subclass(Tensor)
    graph = make_fx(step)(*inputs)
    expected = graph(*inputs)
    merge_products(graph)
    for found, wanted in zip(graph(*inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert found.is_contiguous()


def test_large_products_are_compiled_in_long_runs_only() -> None:
    w, many = normal(3, 3), normal(MANY_ROWS, 3)
    layer = make_fx(lambda w, x: x @ w)(w, many)
    per_step = MANY_ROWS * 3 * 3
    assert not saves_time(layer, LONG_RUN // per_step)
    assert saves_time(layer, LONG_RUN // per_step + 1)
    gradient = make_fx(lambda x, y: x.t() @ y)(many, many)
    assert not saves_time(gradient, 1)


def test_small_products_are_compiled_in_any_run() -> None:
    w = normal(3, 3)
    few, many = normal(5, 3), normal(MANY_ROWS, 3)
    assert saves_time(make_fx(lambda w, x: x @ w)(w, few), 1)
    assert saves_time(make_fx(torch.sin)(many), 1)
    assert saves_time(make_fx(lambda x, y: x @ y)(many.T.contiguous(), many), 1)  # features
    wide = normal(64, 300)  # its product has more multiplications than that of the many rows
    assert saves_time(make_fx(lambda w, x, y: (x @ w, y @ y.T))(w, many, wide), 1)

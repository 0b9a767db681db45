"""Directions that know their parts: the same numbers as the dense tensor, in every situation."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import scorematching as sm
from scorematching import _directions
from scorematching._directions import Directions, Parts, for_reading, parts_of
from tests.contracts import assert_same, seeded
from tests.test_projections import SPLITS, assert_relative, points

NUM, N, D = 3, 4, 6


def drawn(num: int = NUM, seed: int = 0) -> Directions:
    """Directions with parts."""
    v = sm.SplitRademacher().sample(points(N, D), num, seeded(seed))
    assert isinstance(v, Directions) and v.parts is not None
    return v


@pytest.mark.parametrize(("d", "num"), [*SPLITS, (100, 16), (31, 7)])
def test_product_by_parts(d: int, num: int) -> None:
    """``W v_j`` and its gradient in W, by parts and with all the zeros."""
    v = sm.SplitRademacher().sample(points(5, d), num, seeded())
    parts = parts_of(v)
    assert parts is not None and torch.equal(parts.dense(), v)
    w = torch.randn(3, d, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    g = torch.randn(num, 5, 3, generator=seeded(2), dtype=torch.float64)
    by_parts, dense = parts.through(w), v.clone() @ w.T
    assert_relative((by_parts - dense).detach(), 0.0, d)
    (found,), (wanted,) = (torch.autograd.grad(y, w, g) for y in (by_parts, dense))
    assert_relative(found - wanted, 0.0, d)


def test_only_split_signs_have_parts() -> None:
    x = points(N, D)
    for law in (sm.Rademacher(), sm.Rademacher(orthogonal=True), sm.Gaussian(), sm.Sphere()):
        assert type(law.sample(x, NUM, seeded())) is Tensor
    for num in (1, D + 1):
        assert type(sm.SplitRademacher().sample(x, num, seeded())) is Tensor


READS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda v: v + 1,
    "rsub": lambda v: 1 - v,
    "matmul": lambda v: v @ torch.ones(D, 2).double(),
    "clone": lambda v: v.clone(),
    "to": lambda v: v.to(torch.float32),
    "rows by number": lambda v: v[:, torch.tensor([0, 2])],
    "mask": lambda v: v[v > 0],
    "cat": lambda v: torch.cat([v, v]),
    "stack": lambda v: torch.stack([v, v]),
    "zeros": torch.zeros_like,
    "norm": lambda v: v.norm(),
    "einsum": lambda v: torch.einsum("mnd->d", v),
    "vmap": torch.func.vmap(torch.neg),
}
"""Operations with results of their own."""

EXPOSES: dict[str, Callable[[Tensor], Any]] = {
    "index": lambda v: v[0],
    "rows": lambda v: v[:, 1:3],
    "flatten": lambda v: v.flatten(2),
    "unbind": lambda v: v.unbind(0),
    "iteration": lambda v: next(iter(v)),
    "detach": lambda v: v.detach(),
    "data": lambda v: v.data,
    "no-op": lambda v: v.to(torch.float64),
    "numpy": lambda v: v.numpy(),
    "storage": lambda v: v.untyped_storage(),
    "copy": copy.copy,
    "add_": lambda v: v.add_(1),
    "setitem": lambda v: v.__setitem__(0, 0.0),
    "out": lambda v: torch.neg(v, out=v),
    "foreach": lambda v: torch._foreach_add_([v], 1.0),
    "requires_grad_": lambda v: v.requires_grad_(),
    "requires_grad": lambda v: setattr(v, "requires_grad", True),
}
"""Operations that change the numbers, or through whose result they can be changed."""


@pytest.mark.parametrize("operation", READS)
def test_reading_keeps_the_parts(operation: str) -> None:
    v = drawn()
    found, wanted = READS[operation](v), READS[operation](v.clone())
    assert type(found) is Tensor and torch.equal(found, wanted)
    assert v.parts is not None


@pytest.mark.parametrize("operation", EXPOSES)
def test_access_to_the_memory_removes_the_parts(operation: str) -> None:
    v = drawn()
    result = EXPOSES[operation](v)
    assert v.parts is None and parts_of(v) is None
    for part in result if isinstance(result, tuple) else [result]:
        assert getattr(part, "parts", None) is None


def test_attributes_keep_the_parts() -> None:
    v = drawn()
    assert (v.shape, v.dtype, v.device.type, v.ndim) == ((NUM, N, D), torch.float64, "cpu", 3)
    assert v.numel() == NUM * N * D and len(v) == NUM and not v.requires_grad
    assert repr(v).startswith("Directions(") and v.tolist() == v.clone().tolist()
    assert v.parts is not None


def test_copies_are_ordinary_tensors() -> None:
    v = drawn()
    deep = copy.deepcopy({"v": v, "again": v})
    assert type(deep["v"]) is Tensor and torch.equal(deep["v"], v)
    assert deep["v"] is deep["again"] and deep["v"].data_ptr() != v.data_ptr()
    loaded = pickle.loads(pickle.dumps(v))
    assert torch.equal(loaded, v) and parts_of(loaded) is None


def test_inside_the_engine_views_keep_the_parts() -> None:
    v = drawn()
    inner = for_reading(v)
    assert inner.flatten(2)[0].shape == (N, D)
    assert v.parts is not None and parts_of(inner) is v.parts
    plain = torch.ones(NUM, N, D)
    assert for_reading(plain) is plain


# The same answers as for the dense tensor.


class Counted:
    """Counts products by parts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        through = Parts.through

        def counted(parts: Parts, weight: Tensor) -> Tensor:
            self.calls += 1
            return through(parts, weight)

        monkeypatch.setattr(Parts, "through", counted)
        monkeypatch.setattr(_directions, "MIN_PRODUCTS", 0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


class Density(nn.Module):
    """Reads the points by an elementwise operation and a view before it reads them by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(D, 5), nn.Softplus(), nn.Linear(5, 1)).double()
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1, 1, generator=seeded(3))

    def forward(self, x: Tensor) -> Tensor:
        quadratic = 0.5 * x.square().sum(1) + x[:, 0]
        return self.net(x).squeeze(1) - quadratic


OBJECTIVES = [
    sm.SlicedScoreMatching(num_projections=NUM),
    sm.SlicedScoreMatchingVR(num_projections=NUM),
    sm.SlicedScoreMatchingVR(num_projections=NUM, beta=0.3),
]


def answers(objective: sm.Objective, field: sm.Field, x: Tensor, v: Tensor) -> list[Tensor]:
    """Losses and the gradient of their mean."""
    loss = objective.loss(field, x, v)
    parameters = [p for p in field.model.call.parameters()]
    gradients = torch.autograd.grad(loss.mean(), parameters, allow_unused=True)
    return [loss.detach(), *[g for g in gradients if g is not None]]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
@pytest.mark.parametrize("route", ["traced", "reverse"])
def test_losses_by_parts(counted: Counted, objective: sm.Objective, route: str) -> None:
    field = sm.LogDensityField(Density(), route=route)
    x = torch.randn(N, D, generator=seeded(4), dtype=torch.float64)
    v = objective.draw(x, seeded(5))
    found, again = (answers(objective, field, x, v) for _ in range(2))
    assert counted.calls == (2 if route == "traced" else 0)
    assert_same(found, answers(objective, field, x, v.clone()))
    assert_same(found, again, tolerance=0)
    assert v.parts is not None


@pytest.mark.parametrize("change", ["directly", "through a view", "through numpy"])
def test_changed_directions_are_used_as_changed(counted: Counted, change: str) -> None:
    """A wrong curvature would be the one of the directions before the change."""
    field, x, v = sm.LogDensityField(Density()), points(N, D) + 0.3, drawn()
    before = field.score_and_curvature(x, v)[1]
    if change == "directly":
        v[0] = 1.0
    elif change == "through a view":
        v[0].fill_(1.0)
    else:
        v.numpy()[0] = 1.0
    copied = torch.tensor(v.tolist(), dtype=torch.float64)
    found, wanted = (field.score_and_curvature(x, w)[1] for w in (v, copied))
    assert_same(found, wanted)
    assert (found - before).abs().max() > 1e-3
    assert counted.calls == 1


def test_inference_mode(counted: Counted) -> None:
    objective, x = sm.SlicedScoreMatchingVR(num_projections=NUM), points(N, D) + 0.3
    field = sm.LogDensityField(Density(), route="traced")
    with torch.inference_mode():
        found = objective(field, x, seeded())
    assert counted.calls == 1
    assert_same(found, objective(field, x, seeded()).detach())


def test_traced_steps_use_dense_directions(counted: Counted) -> None:
    """A graph that contained the parts of one draw would repeat that draw for ever."""
    objective, x = sm.SlicedScoreMatchingVR(num_projections=NUM), points(N, D) + 0.3
    field = sm.LogDensityField(Density().requires_grad_(False))
    graph = make_fx(lambda x, v: objective.loss(field, x, v).detach())(
        x, objective.draw(x, seeded())
    )
    assert counted.calls == 0
    other = objective.draw(x, seeded(1))
    assert_same(graph(x, other), objective.loss(field, x, other).detach())


def test_compiled_functions_take_directions() -> None:
    """`torch.compile` sees an ordinary tensor, and removes the parts: it may change the numbers."""

    def double(v: Tensor) -> Tensor:
        return (2 * v).sum(0)

    def clear(v: Tensor) -> Tensor:
        return v.zero_()

    v = drawn()
    compiled = torch.compile(double, backend="eager", fullgraph=True)
    assert torch.equal(compiled(v), double(v.clone()))
    v = drawn()
    torch.compile(clear, backend="eager", fullgraph=True)(v)
    assert parts_of(v) is None and not v.any()

"""Activations and norms whose derivatives are computed again instead of kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.functional import jvp
from torch.nn import functional as F

import scorematching as sm
from scorematching.derivatives.ops import activations, compositions, norms
from tests.laws import assert_close
from tests.models_zoo import normal
from tests.tolerances import ROUTES

ACTIVATIONS = {
    "silu": (activations.of_silu(), F.silu),
    "gelu": (activations.of_gelu(), F.gelu),
    "gelu, tanh": (activations.of_gelu("tanh"), lambda z: F.gelu(z, approximate="tanh")),
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_of_every_order(name: str) -> None:
    f, function = ACTIVATIONS[name]
    z = torch.linspace(-5, 5, 60, dtype=torch.float64).requires_grad_()
    y = function(z)
    for order in (1, 2, 3):
        (y,) = torch.autograd.grad(y.sum(), z, create_graph=True)
        assert_close(f.orders(z, order), y, ROUTES)
    assert_close(f.slope(2 * z, z), 2 * z * f.orders(z, 1), ROUTES)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("tangents", [(3, 4), (2, 3, 4), (2, 3, 1)], ids=str)
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_of_a_multiplication(name: str, tangents: Any, order: int) -> None:
    f, _ = ACTIVATIONS[name]

    def multiplied(z: Tensor, q: Tensor) -> Tensor:
        return activations.multiply(f, order, z, q)

    z, q = numbers(3, 4), numbers(*tangents, seed=1)
    assert_close(multiplied(z, q), f.orders(z, order) * q, ROUTES)
    assert gradcheck(multiplied, (z, q))
    assert gradgradcheck(multiplied, (z, q))


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.GroupNorm(2, 8)], ids=["layer", "group"])
@pytest.mark.parametrize("num", [1, 2, 6])
def test_gradients_of_all_losses_at_once(norm: nn.Module, num: int) -> None:
    """Inside vmap torch has no operations that write into a given tensor."""
    net = nn.Sequential(nn.Linear(3, 8), norm, nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)).double()
    objective = sm.SlicedScoreMatchingVR(num_projections=num)
    losses = objective(net, numbers(5, 3).detach(), generator=torch.Generator().manual_seed(1))
    weight, each = net[0].weight, torch.eye(5, dtype=torch.float64)
    rows = [torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses]
    (found,) = torch.autograd.grad(losses, weight, each, is_grads_batched=True)
    assert_close(found, torch.stack(rows), ROUTES)


@pytest.mark.parametrize("tangents", [None, 1, 3, 6])
def test_derivatives_of_a_projection(tangents: int | None) -> None:
    """Up to ``FUSED_TANGENTS`` tangents take torch's kernel, more take the formula."""
    assert norms.FUSED_TANGENTS in range(3, 6)
    x, eps = numbers(4, 5), 0.1
    u = numbers(*[4, 5] if tangents is None else [tangents, 4, 5], seed=1)

    def both(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        z, r = norms._Standardise.apply(x, eps)
        return z, norms.project(z, r, u)

    def written_out(x: Tensor) -> Tensor:
        return compositions.layer_norm(x, [5], eps=eps)

    z, t = both(x, u)
    assert_close(z, written_out(x), ROUTES)
    for part, tangent in zip(t.reshape(-1, 4, 5), u.reshape(-1, 4, 5)):
        assert_close(part, jvp(written_out, (x.detach(),), (tangent.detach(),))[1], ROUTES)
    assert gradcheck(both, (x, u))
    assert gradgradcheck(both, (x, u))


def kept(model: Callable[[Tensor], Tensor], x: Tensor, num: int) -> float:
    """Numbers that the loss of a score network keeps for its backward pass, per number of x.

    Without those that are there anyway: the model's parameters, x and the directions.
    """
    objective = sm.SlicedScoreMatchingVR(num_projections=num)
    field = sm.VectorField(model, check_smoothness=False, route="traced")
    v = objective.draw(x, torch.Generator().manual_seed(0))
    found: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        found[t.untyped_storage().data_ptr()] = t
        return t

    for _ in range(4):  # the first uses also check the model
        found.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            objective.loss(field, x, v).sum()
    for t in (x, v):
        found.pop(t.untyped_storage().data_ptr(), None)
    sizes = [t.untyped_storage().nbytes() // t.element_size() for t in found.values()]
    return sum(size for size in sizes if size >= x.numel() // 2) / x.numel()


WEIGHT = torch.linspace(0.5, 1.5, 64).requires_grad_()


def normed(z: Tensor) -> Tensor:
    return F.layer_norm(z, (64,), WEIGHT)


@pytest.mark.parametrize("num", [1, 4])
@pytest.mark.parametrize(
    ("model", "values", "tangents"),
    [
        pytest.param(lambda z: F.silu(F.silu(z)), 2, 1, id="silu"),
        pytest.param(lambda z: F.gelu(F.gelu(z), approximate="tanh"), 2, 1, id="gelu"),
        pytest.param(lambda z: normed(normed(z)), 2, 3, id="layer_norm"),
    ],
)
def test_what_is_kept(model: Any, values: int, tangents: int, num: int) -> None:
    """Of an activation what it reads, with tangents; of a norm what it returns, as well.

    The multiplication by a norm's weight would keep the latter anyway. The result of the model,
    which the loss keeps, is one more; x and v are not counted.
    """
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    assert kept(model, x, num) <= values + 1 + tangents * num + 0.01

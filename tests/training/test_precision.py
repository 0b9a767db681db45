"""Products in bfloat16 against those in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import scorematching as sm
from scorematching.training import LossModule
from scorematching.training.executors import CompiledGradients
from scorematching.training.executors.precision import allows_bfloat16, round_products
from scorematching.training.executors.products import merge_products

aten = torch.ops.aten
BFLOAT16 = 2.0**-8
"""Half the distance of one and the next number of bfloat16."""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def layers(w: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """A layer with a bias, its transpose, and the sum of two products."""
    y = torch.addmm(b, x, w.t())
    return y, y @ w, x.t() @ x + y.t() @ y


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=dtype) for shape in ((5, 5), (5,), (7, 5))
    ]


def by_hand(w: Tensor, b: Tensor, x: Tensor) -> Any:
    def low(a: Tensor, b: Tensor) -> Tensor:
        return (a.bfloat16() @ b.bfloat16()).float()

    y = low(x, w.t()) + b
    return y, low(y, w), low(torch.cat([x, y]).t(), torch.cat([x, y]))


def test_factors_are_rounded_and_nothing_else() -> None:
    graph = make_fx(layers)(*inputs())
    merge_products(graph)
    round_products(graph)
    for found, expected in zip(graph(*inputs()), by_hand(*inputs()), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=4 * BFLOAT16, atol=4 * BFLOAT16)


def test_rounding_is_of_the_size_of_bfloat16() -> None:
    graph = make_fx(layers)(*inputs())
    round_products(graph)
    found, exact = graph(*inputs())[0], layers(*inputs())[0]
    error = float((found - exact).norm() / exact.norm())
    assert 1e-5 < error < 2 * BFLOAT16


def test_a_matrix_is_rounded_once() -> None:
    graph = make_fx(layers)(*inputs())
    round_products(graph)
    rounded = [n.args[0] for n in graph.graph.nodes if n.args[1:] == (torch.bfloat16,)]
    assert len(rounded) == len(set(rounded)) == 3  # w, x and y, each also transposed


@pytest.mark.parametrize(
    ("setting", "dtype", "allowed"),
    [
        ("medium", torch.float32, True),
        ("high", torch.float32, False),
        ("highest", torch.float32, False),
        ("medium", torch.float64, False),
    ],
)
def test_the_setting_of_torch_decides(setting: str, dtype: torch.dtype, allowed: bool) -> None:
    torch.set_float32_matmul_precision(setting)
    assert allows_bfloat16(make_fx(layers)(*inputs(dtype))) is allowed


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_gradients_on_a_gpu() -> None:
    """Gradients differ from those in tf32 by the rounding of bfloat16."""
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).cuda()
    gradients = []
    for setting in ("high", "medium"):
        torch.set_float32_matmul_precision(setting)
        weights, noise = torch.Generator().manual_seed(1), torch.Generator("cuda").manual_seed(2)
        model = sm.models.MLPDensity(8, (32, 32), generator=weights).cuda()
        CompiledGradients(LossModule(model, sm.SlicedScoreMatchingVR(), noise))(x, 0)
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    error = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert 1e-4 < float(error) < 0.03

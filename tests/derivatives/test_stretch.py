"""The kernel for tangents against plain operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scorematching.derivatives.engine import stretch
from scorematching.derivatives.engine.stretch import Stretch


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain(u: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    return d * u, u.square().mean(0)


def gradients(function: object, u: Tensor, d: Tensor, create_graph: bool = False) -> list[Tensor]:
    leaves = [u.clone().requires_grad_(), d.clone().requires_grad_()]
    stretched, square = function(*leaves)  # type: ignore[operator]
    value = stretched.sin().sum() + (square * d.detach().cos()).sum()
    first = torch.autograd.grad(value, leaves, create_graph=create_graph)
    if create_graph:
        first = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), leaves)
    return [stretched.detach(), square.detach(), *first]


SHAPES = [(2, (3,)), (5, (3, 7)), (784, (4, 130)), (16, (2000,))]
"""One block or several, one tangent for each program or several, and a last one with fewer."""


@pytest.mark.gpu
@pytest.mark.parametrize(("num", "shape"), SHAPES)
@pytest.mark.parametrize("second", [False, True])
def test_kernel(
    num: int, shape: tuple[int, ...], second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretch, "PROGRAMS", 40)
    monkeypatch.setattr(stretch, "LEAST", 0)
    u, d = normal(num, *shape, seed=0).cuda(), normal(*shape, seed=1).cuda()
    assert stretch._takes_kernel(u, d)
    found, expected = (gradients(f, u, d, second) for f in (Stretch.apply, plain))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
def test_tangents_that_are_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretch, "LEAST", 0)
    u, d = normal(6, 5, 4, seed=0).cuda().transpose(1, 2), normal(5, 4, seed=1).cuda().T
    assert not u.is_contiguous()
    for a, b in zip(gradients(Stretch.apply, u, d), gradients(plain, u, d), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_plain_operations_elsewhere() -> None:
    u, d = normal(6, 5, seed=0), normal(5, seed=1)
    assert not stretch._takes_kernel(u, d)
    for second in (False, True):
        pairs = zip(gradients(Stretch.apply, u, d, second), gradients(plain, u, d, second))
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

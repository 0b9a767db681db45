"""Budgets of memory: measured by the library, and by torch's profiler."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from benchmarks import memory
from scorematching._memory import Allocations, in_chunks
from scorematching.evaluation import score_matching_losses
from scorematching.models import MLPDensity

KB = 1000


def test_allocations_are_those_that_live_at_one_time() -> None:
    """Of three tensors one after the other, two at a time; what was there before is free."""
    x = torch.zeros(125 * KB, dtype=torch.float64)
    with Allocations() as used:
        for _ in range(3):
            x = x[:] + 1  # the old and the new one
    assert used.peak == 2 * 1000 * KB
    with Allocations() as used:
        kept = [torch.zeros(125, dtype=torch.float64) for _ in range(5)]
    assert used.peak == 5 * KB and len(kept) == 5


def test_what_autograd_keeps_is_counted() -> None:
    x = torch.zeros(1000, dtype=torch.float64, requires_grad=True)
    gc.collect()
    with Allocations() as used:
        y = x.exp().sin().exp()
    assert used.peak == 3 * 8 * KB and y.requires_grad


class Sizes:
    """A function that takes a fixed amount of memory and some for every point."""

    def __init__(self, fixed: int, each: int) -> None:
        self.fixed, self.each, self.sizes = fixed, each, list[int]()

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        a = torch.zeros(self.fixed, dtype=torch.uint8)
        b = torch.zeros(self.each * len(x), dtype=torch.uint8)
        return x.new_ones(len(x)) * (len(a) * 0 + len(b) * 0 + 1) * x[:, 0]


@pytest.mark.parametrize("fixed", [0, 30 * KB])
def test_chunks_fill_the_budget(fixed: int) -> None:
    """Every call takes less than the budget, most of them nearly all of it."""
    function, x = Sizes(fixed, each=KB), torch.arange(1000.0)[:, None]
    found = in_chunks(function, [x], batch_size=1000, max_memory=100 * KB)
    assert torch.equal(found, x[:, 0]) and sum(function.sizes) == 1000
    taken = [fixed + KB * size for size in function.sizes]
    assert max(taken) <= 100 * KB
    assert sum(t >= 80 * KB for t in taken) >= len(taken) - 8


def test_batch_size_is_a_limit_too() -> None:
    function, x = Sizes(0, each=1), torch.zeros(100, 1)
    in_chunks(function, [x], batch_size=10, max_memory=10**9)
    assert max(function.sizes) == 10
    function.sizes.clear()
    in_chunks(function, [x], batch_size=30)
    assert function.sizes == [30, 30, 30, 10]


def test_too_small_a_budget_is_refused() -> None:
    x = torch.zeros(10, 2)
    with pytest.raises(ValueError, match=r"max_memory must be at least 1\d{4} bytes, which one"):
        in_chunks(Sizes(10 * KB, 1), [x], 10, max_memory=5 * KB)
    with pytest.raises(ValueError, match="max_memory must be at least 1, got 0"):
        score_matching_losses(MLPDensity(dim=2), x, max_memory=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_function_keeps_its_budget() -> None:
    """Within a fifth, by torch's profiler, which sees every allocation; with the same numbers."""
    names = set()
    for free, *peaks in memory.measure_all(points=1024, dim=20, shares=(0.5, 0.25)):
        for peak in peaks:
            names.add(peak.name)
            assert peak.ratio <= 1.2, peak.name
            assert torch.allclose(peak.result, free.result, rtol=1e-4, atol=1e-4), peak.name
    assert len(names) == 15

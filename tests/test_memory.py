"""Budgets of memory: measured by the library, and by torch's profiler."""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import scorematching as sm
from benchmarks import memory
from benchmarks.budgets import Fit
from scorematching._memory import (
    Allocations,
    Budget,
    Chunks,
    current_budget,
    in_chunks,
    joined,
)
from scorematching.distributions import Gaussian
from scorematching.evaluation import score_matching_losses
from scorematching.evaluation.fid.distances import feature_moments, frechet_distance
from scorematching.evaluation.log_z.ais import ais
from scorematching.evaluation.log_z.annealed import ais_log_z
from scorematching.evaluation.log_z.importance import importance_log_z
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


def test_sizes_are_remembered() -> None:
    function, x = Sizes(0, each=KB), torch.zeros(300, 1)
    chunks = Chunks(300, 50 * KB, reserve=20 * KB)
    assert len(joined(chunks, function, [x])) == 300
    function.sizes.clear()
    joined(chunks, function, [x])
    assert max(function.sizes) <= 30 and function.sizes[0] >= 24
    with pytest.raises(
        ValueError, match=r"at least 2\d{4} bytes, which one point takes, got 15000"
    ):
        in_chunks_with_reserve(Sizes(10 * KB, 1), x)


def in_chunks_with_reserve(function: Sizes, x: Tensor) -> Tensor:
    return joined(Chunks(10, 15 * KB, reserve=10 * KB), function, [x])


def test_results_are_joined_without_a_second_copy() -> None:
    """A result of 8 MB and chunks of 0.1 MB take little more than the result."""
    x = torch.zeros(1000, 1000, dtype=torch.float64)
    with Allocations() as used:
        y = in_chunks(torch.exp, [x], 1000, max_memory=100 * KB)
    assert y.sum() == 1e6 and used.peak <= 8.3e6


# Budgets of a whole computation.


def test_an_operation_that_does_not_fit_is_refused_before_it_allocates() -> None:
    """Results of 4 TB cannot be allocated: without the refusal there would be another error."""
    x = torch.ones(10**6, 1)
    for operation in (lambda: x * x.T, lambda: x @ x.T, lambda: torch.zeros(10**12)):
        message = r"max_memory must be at least 4\d{12} bytes, which \w+ needs .*; .* take fewer"
        with pytest.raises(ValueError, match=message), Budget(10**9, "take fewer points"):
            operation()


def test_what_is_left() -> None:
    x = torch.ones(1000)
    with Budget(10 * KB, "") as budget:
        y = x[:500] + x[500:]
        assert budget.left == 8 * KB and current_budget() is budget
        del y
        assert budget.left == 10 * KB
        budget.require(10 * KB, "this takes")
        with pytest.raises(ValueError, match="at least 12000 bytes, which this takes, got 10000"):
            budget.require(12 * KB, "this takes")
        raise_again = pytest.raises(ValueError, match="at least 12000 bytes")
        with raise_again:
            x + 1  # nothing goes on after a refusal
        budget._refusal = ""
    assert current_budget() is None


def test_a_refusal_cannot_be_lost() -> None:
    """Code that goes on without what fails would change its result."""
    refusal = pytest.raises(ValueError, match="max_memory must be at least 4000 bytes")
    with refusal, Budget(KB, ""), contextlib.suppress(ValueError):
        torch.zeros(1000)


def test_workspace_of_linear_algebra_counts() -> None:
    """As torch's profiler sees it, within five percent."""
    x = torch.randn(200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    square = x @ x.T + torch.eye(200)
    for operation in (torch.linalg.eigh, torch.linalg.inv, torch.Tensor.logsumexp):
        arguments = (1,) if operation is torch.Tensor.logsumexp else ()
        with Allocations() as used:
            operation(square, *arguments)
        peak = memory.measure("", lambda m, f=operation, a=arguments: _run(f, square, *a), None)
        assert 0.95 <= used.peak / peak.bytes <= 1.05, operation


def _run(operation: Any, *arguments: Any) -> float:
    operation(*arguments)
    return 0.0


# Functions of the library.

X = torch.randn(150, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DENSITY = MLPDensity(dim=3, hidden=(32,), generator=torch.Generator().manual_seed(0)).double()
NORMAL = Gaussian(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))


def _g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _errors(m: int | None) -> list[float]:
    found = sm.inference.fit(sm.inference.models.Gaussian(3), X, max_memory=m, check=False)
    return [float(value) for value in found.bse.values()]


E = sm.evaluation
WIDE = torch.randn(3, 300, generator=_g(), dtype=torch.float64)
FEATURES, OTHERS = X @ WIDE[:, :20], X @ WIDE[:, 20:40]
CALLS: dict[str, memory.Call] = {
    "Stein": Fit(sm.SteinScoreEstimator, X.numpy()),
    "spectral": Fit(sm.SpectralScoreEstimator, X.numpy()),
    "Tikhonov": Fit(partial(sm.KernelExpFamilyEstimator, num_inducing=None), X[:60].numpy()),
    "inducing": Fit(
        partial(sm.KernelExpFamilyEstimator, num_inducing=20, random_state=0), X.numpy()
    ),
    "nu": Fit(partial(sm.KernelExpFamilyEstimator, method="nu", bandwidth=2.0), X.numpy()),
    "sliced": Fit(
        partial(sm.SlicedScoreEstimator, hidden=(16,), max_steps=2, random_state=0), X.numpy()
    ),
    "kernel density": Fit(
        partial(sm.DensityEstimator, "none", base="kde", random_state=0), X.numpy()
    ),
    "ksd": lambda m: E.kernel_stein_discrepancy(DENSITY, X, max_memory=m),
    "ksd_test": lambda m: (
        E.ksd_test(E.Fixed(DENSITY), X, num_bootstrap=9, generator=_g(), max_memory=m).null
    ),
    "stein_thin": lambda m: E.stein_thin(X, DENSITY, 5, bandwidth=1.0, max_memory=m),
    "importance": lambda m: (
        importance_log_z(DENSITY, NORMAL, 500, 300, generator=_g(), max_memory=m).log_z
    ),
    "ais": lambda m: ais_log_z(DENSITY, NORMAL, 100, 3, generator=_g(), max_memory=m).log_z,
    "moments": lambda m: feature_moments(lambda x: (x @ WIDE).tanh()[:, :9], X, max_memory=m).mean,
    "frechet": lambda m: frechet_distance(FEATURES, OTHERS, max_memory=m),
    "inference": _errors,
    "compare": lambda m: E.compare(DENSITY, NORMAL, X, max_memory=m).difference.mean,
}
IN_PARTS = {"inducing", "nu", "ksd_test", "stein_thin", "importance", "moments", "inference"}
IN_PARTS |= {"compare"}
QUICK = [name for name in CALLS if name not in ("sliced", "kernel density")]


@pytest.mark.parametrize("name", QUICK)
def test_limits_are_kept(name: str) -> None:
    """At half of what it takes without a limit, or at the least that is accepted: same results."""
    free = memory.measure(name, CALLS[name], None)
    limited = memory.within(name, CALLS[name], free.bytes // 2)
    assert limited.ratio <= 1.2
    assert torch.allclose(limited.result, free.result, rtol=1e-6, atol=1e-8)
    assert not (name in IN_PARTS and limited.refused)


@pytest.mark.parametrize("name", CALLS)
def test_limits_that_are_too_small_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"max_memory must be at least \d+ bytes, which .*; use a"):
        CALLS[name](100)
    with pytest.raises(ValueError, match="max_memory must be at least 1, got 0"):
        CALLS[name](0)


def test_groups_of_chains_stay_together() -> None:
    """A density that knows its groups by their place sees whole groups, in parts too."""
    shift = torch.tensor([0.0, 3.0], dtype=torch.float64)

    def end(x: Tensor) -> Tensor:
        return NORMAL(x) + shift.repeat(len(x) // 2)

    x = NORMAL.sample(60, _g())
    found = [
        ais(NORMAL, end, x, step_size=0.3, num_steps=3, num_groups=2, generator=_g(), max_memory=m)
        for m in (None, 30 * KB)
    ]
    assert torch.allclose(found[0].log_weights, found[1].log_weights)
    assert torch.allclose(found[1].log_z, shift)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_function_keeps_its_budget() -> None:
    """Within a fifth, by torch's profiler, which sees every allocation; with the same numbers."""
    names = set()
    for free, *peaks in memory.measure_all(points=512, dim=20, shares=(0.5, 0.25)):
        for peak in peaks:
            names.add(peak.name)
            assert peak.ratio <= 1.2, peak.name
            assert torch.allclose(peak.result, free.result, rtol=1e-4, atol=1e-4), peak.name
    assert names == set(memory.calls(points=512, dim=20))

"""The statistical assertion itself: its error rate, its power, its refusal of weak tests."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from tests.statistics import assert_mean

FAR = 1e9  # a `detect` so large that the power check never speaks


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def alarms(rows: int, entries: int, error_rate: float, repetitions: int) -> int:
    """How many of `repetitions` true statements about N(0, 1) are rejected."""
    count = 0
    for samples in normal(0, repetitions, rows, entries):
        try:
            assert_mean(samples, 0.0, detect=FAR, error_rate=error_rate)
        except AssertionError:
            count += 1
    return count


def test_never_alarms_at_its_default_rate() -> None:
    # At most 200 x 1e-6: one alarm in these repetitions would be a defect.
    for seed in range(200):
        assert_mean(1 + normal(seed, 1000, 3), 1.0, detect=0.3)


@pytest.mark.parametrize("rows, entries", [(3, 1), (50, 1), (20, 8)])
def test_error_rate_is_the_stated_one(rows: int, entries: int) -> None:
    # Independent normal entries: the rate is exactly 1 - (1 - rate / K)^K, at any n (Student's t).
    rate, repetitions = 0.2, 2000
    exact = 1 - (1 - rate / entries) ** entries
    low, high = scipy.stats.binom.interval(1 - 1e-6, repetitions, exact)
    assert low <= alarms(rows, entries, rate, repetitions) <= high


def test_interval_of_the_rate_would_catch_a_one_sided_quantile() -> None:
    # A one-sided quantile doubles the rate: that count must lie outside the interval used above.
    _, high = scipy.stats.binom.interval(1 - 1e-6, 2000, 0.2)
    assert alarms(50, 1, error_rate=0.4, repetitions=2000) > high


@pytest.mark.parametrize("bias", [0.98, 1.02])
def test_rejects_two_per_cent_bias(bias: float) -> None:
    samples = 1 + normal(0, 200_000)
    assert_mean(samples, 1.0, detect=0.02)
    with pytest.raises(AssertionError, match="differs from 1 by"):
        assert_mean(bias * samples, 1.0, detect=0.02)


def test_refuses_a_test_too_weak_to_see_the_error() -> None:
    samples = 1 + normal(0, 1000)
    with pytest.raises(AssertionError, match=r"cannot see an error of 0\.02 .* got 1000"):
        assert_mean(samples, 1.0, detect=0.02)


def test_power_bound_is_64_variances() -> None:
    # +-1 in equal numbers: sd^2 = n / (n - 1), so n >= 64 sd^2 first holds at n = 65, here 66.
    def signs(n: int) -> np.ndarray:
        return np.resize([1.0, -1.0], n)

    assert_mean(signs(66), 0.0, detect=1.0)
    with pytest.raises(AssertionError, match="takes 65 rows, got 64"):
        assert_mean(signs(64), 0.0, detect=1.0)


def test_names_the_one_wrong_entry() -> None:
    samples = normal(0, 10_000, 4, 5)
    samples[:, 2, 3] += 0.1
    with pytest.raises(AssertionError, match=r"of entry \(2, 3\)"):
        assert_mean(samples, 0.0, detect=0.1)


def test_detect_and_truth_may_differ_by_entry() -> None:
    scale = torch.tensor([1.0, 100.0], dtype=torch.float64)
    samples = scale * (1 + normal(0, 10_000, 2))
    assert_mean(samples, scale, detect=0.1 * scale)
    with pytest.raises(AssertionError, match=r"cannot see .* in entry \(1,\)"):
        assert_mean(samples, scale, detect=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constants_are_compared_to_rounding(dtype: torch.dtype) -> None:
    samples = torch.full((1000,), 0.1, dtype=dtype)
    assert_mean(samples, 0.1, detect=0.01)
    with pytest.raises(AssertionError, match="differs"):
        assert_mean(samples, 0.1001, detect=0.01)


def test_arrays_and_tensors_are_the_same() -> None:
    samples = normal(0, 1000)
    for given in (samples, samples.numpy(), samples.clone().requires_grad_()):
        assert_mean(given, torch.zeros(()), detect=0.3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rejects_what_is_not_finite(bad: float) -> None:
    samples = normal(0, 1000)
    samples[7] = bad
    with pytest.raises(AssertionError, match="finite"):
        assert_mean(samples, 0.0, detect=1.0)


def test_refuses_arguments_that_make_no_test() -> None:
    samples = normal(0, 1000, 3)
    with pytest.raises(ValueError, match=r"truth must be a number or have shape \(3,\)"):
        assert_mean(samples, np.zeros((3, 1)), detect=1.0)
    with pytest.raises(ValueError, match="at least two rows"):
        assert_mean(samples[:1], 0.0, detect=1.0)
    with pytest.raises(ValueError, match="detect > 0"):
        assert_mean(samples, 0.0, detect=0.0)

"""Memory is measured as the peak."""

import pytest
import torch

from benchmarks.harness import timing


def test_peak_memory_is_the_peak():
    """Two megabytes at a time, though three are allocated."""

    def step():
        a = torch.ones(1 << 20, dtype=torch.uint8)
        b = a + 1
        del a
        return b + 1

    assert timing.peak_bytes(step, "cpu") == pytest.approx(2 << 20, rel=1e-3)

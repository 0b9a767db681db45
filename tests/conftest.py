"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed; tests say ``dtype=torch.float64`` where they draw."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def same_threads() -> Iterator[None]:
    """Give back the threads that a program, as a program may, set for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)

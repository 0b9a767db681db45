"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed; tests say ``dtype=torch.float64`` where they draw."""
    return torch.Generator().manual_seed(0)

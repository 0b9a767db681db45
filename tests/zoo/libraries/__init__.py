"""Third-party models, one module for each library or family of libraries."""

from __future__ import annotations

from benchmarks.harness.torchvision import declare_operators

_TORCHVISION = declare_operators()
"""Kept: a declaration lasts as long as this object."""

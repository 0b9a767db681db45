"""``scorematching datasets``."""

from __future__ import annotations

import typer

from scorematching import datasets
from scorematching.cli.app import DataDir


def list_datasets(data_dir: DataDir = None) -> None:
    """List the data sets, and whether their files are there."""
    for name in datasets.names():
        state = "ready" if datasets.is_at_hand(name, data_dir) else "not found"
        typer.echo(f"{name:<12} {state}")

"""``scorematching datasets``."""

from __future__ import annotations

from typing import Annotated

import typer

from scorematching import datasets
from scorematching.cli.app import DataDir
from scorematching.cli.options import say

Download = Annotated[
    str | None, typer.Option(metavar="NAME", help="Fetch the file of a data set first.")
]


def list_datasets(data_dir: DataDir = None, download: Download = None) -> None:
    """List the data sets, and whether their files are there."""
    if download is not None:
        data = datasets.load(download, data_dir, download=True)
        say(f"{download}: {tuple(data.x.shape)}, {data.licence}; cite {data.citation}")
    for name in datasets.names():
        say(f"{name:<12} {_state(name, data_dir)}")


def _state(name: str, data_dir: str | None) -> str:
    """Whether a file is there, and how to get it."""
    if datasets.is_at_hand(name, data_dir):
        return "ready"
    source = datasets.registry.SOURCES.get(name)
    known = source is not None and source.file.urls
    return f"not found; --download {name} fetches it" if known else "not found"

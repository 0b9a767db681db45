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
        state = "ready" if datasets.is_at_hand(name, data_dir) else "not found"
        say(f"{name:<12} {state}")

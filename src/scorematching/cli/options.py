"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that fit has written.")]
Table = Annotated[str | None, typer.Option("--data", help="The table, if it is not where it was.")]
Seed = Annotated[int, typer.Option(min=0, help="Of all randomness.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]


def say(*lines: object) -> None:
    """Print lines to standard output."""
    for line in lines:
        typer.echo(str(line))

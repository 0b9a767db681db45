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


def command_of(context: typer.Context) -> list[str]:
    """A command line that gives a command the same options again; defaults are left out."""
    words = ["scorematching", str(context.info_name)]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.param_type_name == "argument":
            words += [] if value is None else [str(value)]
        elif value is not None and value != parameter.default:
            words += [parameter.opts[0], *([] if value is True else [str(value)])]
    return words

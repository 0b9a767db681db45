"""Options that several commands have."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that fit has written.")]
Table = Annotated[str | None, typer.Option("--data", help="The table, if it is not where it was.")]
Seed = Annotated[int, typer.Option(min=0, help="Of all randomness.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]


def say(*lines: object) -> None:
    """Print lines to standard output; of processes that were started together, the first does."""
    for line in lines if is_main() else ():
        typer.echo(str(line))


def is_main() -> bool:
    """Whether this process is alone, or the first of those that torchrun or accelerate started."""
    return os.environ.get("RANK", "0") == "0"


def own_folder(context: typer.Context, folder: Path) -> Path:
    """The folder to write to: the given one, or in other processes than the first a temporary one.

    All processes do the same work, on their shares of each batch where a network is trained.
    """
    if is_main():
        return folder
    temporary = tempfile.mkdtemp()
    context.call_on_close(lambda: shutil.rmtree(temporary, ignore_errors=True))
    return Path(temporary) / folder.name


def check_no_limit(minutes: float | None) -> None:
    """Refuse a limit of time for several processes, which would stop at different moments.

    Raises:
        ValueError: if there is one.
    """
    if minutes is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"--max-minutes must be left out where several processes fit together, got {minutes}; "
            "they would stop at different moments"
        )


def command_of(context: typer.Context, without: Collection[str] = ()) -> list[str]:
    """A command line that gives a command the same options again; defaults are left out.

    Args:
        context: of the command.
        without: parameters to leave out, too.
    """
    words = ["scorematching", str(context.info_name)]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in without:
            continue
        if parameter.param_type_name == "argument":
            words += [] if value is None else [str(value)]
        elif value not in (None, parameter.default):
            for each in value if isinstance(value, (list, tuple)) else [value]:
                words += [parameter.opts[0], *([] if each is True else [str(each)])]
    return words

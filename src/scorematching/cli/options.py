"""Options that several commands have."""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import torch
import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that fit has written.")]
Table = Annotated[str | None, typer.Option("--data", help="The table, if it is not where it was.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Of all randomness.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]


def bytes_of(text: str | None, name: str) -> int | None:
    """A number of bytes, such as 500MB, 2GB or 1e9.

    Raises:
        ValueError: if it is none.
    """
    if text is None:
        return None
    units = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    found = re.fullmatch(r"\s*(\d+\.?\d*(?:[eE]\d+)?)\s*([KMGT]?B?)\s*", text, re.IGNORECASE)
    unit = found[2].upper() if found else ""
    count = float(found[1]) * units[unit if unit in units else f"{unit}B"] if found else 0.0
    if not 1 <= count < 1e18:
        raise ValueError(f"{name} must be a number of bytes such as 500MB or 2GB, got {text!r}")
    return int(count)


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
        return folder.expanduser()  # shells leave ~ in --out=~/run
    temporary = tempfile.mkdtemp()
    context.call_on_close(lambda: shutil.rmtree(temporary, ignore_errors=True))
    return Path(temporary) / folder.name


def check_device(device: str) -> None:
    """Require a device that can be used here.

    Raises:
        ValueError: if its name is unknown, or there is none.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0][:120]
        raise ValueError(
            f"--device must be a device of this machine, got {device!r} ({reason}); use cpu"
        ) from error


def names_of(text: str | None) -> list[str] | None:
    """Names of columns, separated by commas; names with commas have quotes around them.

    Example:
        >>> names_of('pH, "acid, total"')
        ['pH', 'acid, total']
    """
    if text is None:
        return None
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True)) or [""]]


def check_minutes(minutes: float | None) -> None:
    """Refuse a limit of time that is none, or for several processes, which would stop apart.

    Raises:
        ValueError: if there is one.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(
            f"--max-minutes must be a positive number, got {minutes:g}; leave it out for no limit"
        )
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

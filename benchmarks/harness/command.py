"""Benchmarks as commands: the annotated arguments of a function are the options."""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness.outputs import check_writable
from scorematching.cli.app import INTERRUPTED

Threads = Annotated[int, typer.Option(min=1, help="CPU threads of torch.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Few small cases, in seconds.")]
Output = Annotated[Path | None, typer.Option(help="JSON file to write.")]
Docs = Annotated[Path | None, typer.Option(help="Folder of the page.")]


def run_command(function: Callable[..., Any], example: str) -> None:
    """Run a function as the program of this process.

    Args:
        function: its annotated arguments are the options, its first line of documentation the help.
        example: a command line, for the end of the help.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    summary = (inspect.getdoc(function) or "").splitlines()[0]
    app.command(help=summary, epilog=f"Example: {example}")(checked(function))
    try:
        app()
    except OutputError as error:
        raise SystemExit(f"{error}") from None
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            print("interrupted; no results were written", file=sys.stderr)
        raise


class OutputError(OSError):
    """A place for results where nothing can be written."""


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which first checks that what it is asked to write can be written.

    Raises:
        OutputError: names the option, before anything is measured.
    """

    @functools.wraps(function)
    def check_and_call(*arguments: Any, **options: Any) -> Any:
        for name in ("output", "out", "docs"):
            if isinstance(options.get(name), Path):
                _check(options[name], name)
        return function(*arguments, **options)

    return check_and_call


def _check(path: Path, name: str) -> None:
    try:
        check_writable(path, f"--{name}", folder=not path.suffix)
    except OSError as error:
        raise OutputError(str(error)) from error


def command_line(program: str, function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """What to type for a call: the options that differ from the function's defaults.

    Paths are left out: they say where results were written, not what was measured.

    Args:
        program: such as ``python -m benchmarks.objectives``.
        function: what was called.
        given: its arguments.

    Example:
        >>> def measure(rounds: int = 40, memory: bool = True, models: list = None): ...
        >>> given = {"rounds": 20, "memory": False, "models": ["a", "b"]}
        >>> command_line("python -m measure", measure, given)
        'python -m measure --rounds 20 --no-memory --models a --models b'
    """
    words = program.split()
    for name, parameter in inspect.signature(function).parameters.items():
        value = given[name]
        if value != parameter.default and not isinstance(value, Path):
            words += _words(name.replace("_", "-"), value)
    return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, list) else [value]
    return [word for each in values for word in (f"--{name}", str(each))]

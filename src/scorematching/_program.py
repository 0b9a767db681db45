"""Ctrl-C in the program ``scorematching``, from the first import on.

Importing torch takes seconds, and this package imports it before the program can catch anything. So
this module, which is imported first, sets the hook of exceptions that nobody catches. It does so
only where the process is the program.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

PROGRAM = "scorematching"

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


def is_program(argv: list[str], command: list[str]) -> bool:
    """Whether a process is the program, and no other that imports the package.

    Args:
        argv: of `sys`; Python puts "-m" there while it imports the package of ``python -m``.
        command: its whole command line.

    Example:
        >>> is_program(["-m"], ["python", "-m", "scorematching", "fit"]), is_program(["a.py"], [])
        (True, False)
    """
    first = argv[0] if argv else ""
    if first == "-m":
        return any(PROGRAM in (word, word.removeprefix("-m")) for word in command[1:])
    return Path(first).stem == PROGRAM


def say_interrupted(program: str | None) -> None:
    """The one line after Ctrl-C."""
    print(f"{program}: interrupted", file=sys.stderr)


def _end(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """A hook of exceptions that nobody catches: Ctrl-C is one line, in place of a traceback."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    say_interrupted(PROGRAM)
    raise SystemExit(INTERRUPTED)


if is_program(getattr(sys, "argv", []), sys.orig_argv):
    sys.excepthook = _end

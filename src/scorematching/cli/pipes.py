"""What a program does when the reader of its output has gone, as in ``... | head -1``."""

from __future__ import annotations

import os
import sys

READER_GONE = 141
"""The exit status that shells report for a program that SIGPIPE has ended."""


def is_reader_gone(error: BaseException) -> bool:
    """Whether an exception comes from output that nobody reads.

    typer and rich turn the error of such an output into ``SystemExit(1)``, raised while they
    handle it.
    """
    origin = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(origin, BrokenPipeError)


def discard_output() -> None:
    """Send what is left in buffers nowhere, so that Python has nothing to complain about at exit.

    SIGPIPE itself would end the process at once, in the middle of a file.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)

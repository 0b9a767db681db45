"""Processes that tests start, interrupt and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(
    *arguments: str, env: Mapping[str, str] | None = None, **options: object
) -> subprocess.Popen[str]:
    """Begin ``python ARGUMENTS`` in a session of its own, where SIGINT has its usual effect."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A program in the background of a shell ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,  # type: ignore[call-overload]
    )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> bool:
    """Wait up to five minutes for something that a process does; False if it ends before."""
    began = time.monotonic()
    while not condition():
        if process.poll() is not None or time.monotonic() - began > 300:
            return condition()
        time.sleep(0.002)
    return True


def finish(process: subprocess.Popen[str], timeout: float = 60.0) -> tuple[int, str, str]:
    """The exit status, output and errors of a process; it is killed if it takes too long."""
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        errors += f"\nkilled after {timeout} seconds"
    return process.returncode, output, errors

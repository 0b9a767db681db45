"""Where a number comes from: versions, device, commit."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "numpy", "scikit-learn", "scorematching")


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that numbers depend on; None for what is missing."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def now() -> str:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def device_name(kind: str) -> str:
    """The model of the processor; kind is "cpu" or "cuda"."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo")
    if lines.exists():
        for line in lines.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit that is checked out, where there is one; marked where files differ from it.

    A copy that is not a checkout says what it is a copy of by SCOREMATCHING_COMMIT.
    """
    found = os.environ.get("SCOREMATCHING_COMMIT")
    if found is not None:
        return found
    found = _git("rev-parse", "HEAD")
    if found is None:
        return None
    return found + ("+" if _git("status", "--porcelain", "--", "src") else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

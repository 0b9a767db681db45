"""Where a number comes from: command, date, commit, device, versions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import scorematching

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "numpy", "scikit-learn", "scorematching")


def stamp(
    command: str, device: str = "cpu", packages: tuple[str, ...] = PACKAGES
) -> dict[str, Any]:
    """What every file of results begins with.

    Args:
        command: what to type for the same results.
        device: "cpu" or "cuda".
        packages: whose versions to record.
    """
    found = versions(packages)
    return {
        "command": command,
        "date": now(),
        "commit": commit(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "python": found.pop("python"),
        "versions": found,
    }


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Versions of Python and of packages; None for a package that is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


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
    """The commit that is checked out, or None; followed by "+" if its files were changed.

    In a copy without git, set the environment variable SCOREMATCHING_COMMIT to the commit.
    """
    found = os.environ.get("SCOREMATCHING_COMMIT")
    if found is not None:
        return found
    found = _git("rev-parse", "HEAD")
    if found is None:
        return None
    changed = _git("status", "--porcelain", "--", "src", "reproduction", "benchmarks/*.py")
    return found + ("+" if changed else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(name: str) -> str | None:
    if name == "scorematching":  # it need not be installed to be imported
        return scorematching.__version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

"""Checksums of the files of a run, which find files that were changed, lost or exchanged.

``run.json`` holds one of itself, but for the place of the table, which may move, and one of each
other file that numbers come from. The files of saved models have checksums of their own in their
``config.json``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ITSELF = "itself"


def checksums(folder: Path, about: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """The checksums of a run.

    Args:
        folder: of the run.
        about: the content of ``run.json``, as JSON has it.
        names: patterns of its other files.
    """
    files = sorted(path for name in names for path in folder.glob(name))
    found = {path.relative_to(folder).as_posix(): _sha256(path.read_bytes()) for path in files}
    return {**found, ITSELF: _of_itself(about)}


def changed_file(folder: Path, about: dict[str, Any], itself: str) -> str | None:
    """The first file of a run that is not as fit wrote it, in words; None if all are.

    Args:
        folder: of the run.
        about: the content of ``run.json``; without checksums, of earlier versions, all is well.
        itself: the name of ``run.json``.
    """
    known = about.get("checksums")
    if not isinstance(known, dict):
        return None
    if known.get(ITSELF) != _of_itself(about):
        return f"{folder / itself} has changed"
    for name in known.keys() - {ITSELF}:
        path = folder / name
        if not path.is_file():
            return f"{path} is gone"
        if _sha256(path.read_bytes()) != known[name]:
            return f"{path} has changed"
    return None


def _of_itself(about: dict[str, Any]) -> str:
    rest = {key: value for key, value in about.items() if key != "checksums"}
    if isinstance(options := rest.get("options"), dict):
        rest["options"] = {key: value for key, value in options.items() if key != "path"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

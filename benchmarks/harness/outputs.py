"""Places for results, tried before work is spent on them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def check_writable(path: Path, name: str, folder: bool = False) -> None:
    """Require that a file, or a folder with its files, can be written; leaves nothing behind.

    A temporary file is created in the nearest folder that exists, which also finds read-only
    file systems, where permissions alone say nothing to the superuser.

    Args:
        path: what will be written.
        name: of the argument, for the message.
        folder: it will be a folder.

    Raises:
        OSError: names the path and the reason.
    """
    if path.is_dir() != folder and path.exists():
        kind, other = ("folder", "file") if folder else ("file", "folder")
        raise OSError(f"{name} must be a {kind}, got {path}, which is a {other}; choose another")
    where = path if folder else path.parent
    nearest = next(parent for parent in (where, *where.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
        if path.exists() and not folder:
            os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            f"{name} must be a place where files can be written, got {path} ({reason}); "
            "choose another"
        ) from error

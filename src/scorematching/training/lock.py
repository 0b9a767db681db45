"""One process in a folder at a time.

The lock is the operating system's (``flock``), on a file in the folder that also says who holds it.
The system releases it when the process ends, however it ends, so a killed process holds no lock,
whatever its file says.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from scorematching.errors import FolderInUseError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("scorematching.training")

LOCK = "train.lock"


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK, what: Path | None = None) -> Iterator[bool]:
    """Hold the lock of a folder inside the block; its file is removed at the end.

    Args:
        folder: that has the file of the lock.
        name: of the file, for locks of several kinds in one folder.
        what: the lock is for, in the message; None is the folder.

    Yields:
        Whether it is held: some systems have no locks.

    Raises:
        FolderInUseError: another process holds it; the message names that process.
    """
    path = folder / name
    descriptor = _acquire(path, folder if what is None else what)
    if descriptor is None:
        yield False
        return
    try:
        os.ftruncate(descriptor, 0)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield True
    finally:
        path.unlink(missing_ok=True)  # while it is held, so that nobody loses a newer one
        os.close(descriptor)


def _acquire(path: Path, what: Path) -> int | None:
    """The locked file; None where the system has no locks."""
    if sys.platform == "win32":
        return None
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FolderInUseError(_in_use(path, what)) from None
        except OSError as error:
            os.close(descriptor)
            logger.warning("%s is not locked, its file system has no locks: %s", path, error)
            return None
        if _is_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # its last holder has removed it meanwhile


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _in_use(path: Path, what: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        who = "process {process} on {host} since {since}".format(**holder)
    except (OSError, ValueError, KeyError, TypeError):  # it is being written
        who = "another process"
    return (
        f"folder must be used by one process at a time, got {what}, which {who} uses; "
        "wait for it, end it, or choose another folder"
    )

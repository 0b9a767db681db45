"""A folder that takes its name when it is complete, of one process at a time.

While it is written it has a hidden name beside its later one, which holds the host and the process:
``.NAME.HOST-PROCESS-RANDOM.new``, and ``.old`` for a run that is being replaced. A process that is
killed leaves these. The next one that writes to NAME on the same host removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from scorematching.runs.folder import ABOUT, files_of_others
from scorematching.tables.summary import listed
from scorematching.training.lock import locked


def check_new(folder: Path, overwrite: bool) -> None:
    """Refuse to write over anything but, with ``overwrite``, a run with nothing beside it.

    Raises:
        FileExistsError: if the folder exists.
    """
    _check_place(folder)
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise FileExistsError(f"{folder} exists; pass --overwrite, or another folder to --out")
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.is_symlink() or not (empty or (folder / ABOUT).is_file()):
        raise FileExistsError(f"{folder} exists and is no run; choose another folder for --out")
    if others := files_of_others(folder):
        raise FileExistsError(
            f"{folder} must hold nothing but a run to be replaced, got {listed(others)} beside it; "
            "move what you want to keep, or choose another folder for --out"
        )


def _check_place(folder: Path) -> None:
    """Refuse a name below something that is no folder."""
    above = next((path for path in folder.parents if os.path.lexists(path)), Path())
    if not above.is_dir():
        raise NotADirectoryError(
            f"--out must be a new folder, got {folder}, where {above} is no folder; choose another"
        )


@contextlib.contextmanager
def new_folder(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder that takes its final name when the block ends without an error.

    Args:
        folder: the final name.
        overwrite: replace a run of that name.

    Raises:
        FileExistsError: if the folder exists. At the end, if it was made meanwhile by other means
            than this function: the error names the folder in which the new one is kept.
        FolderInUseError: if another process writes to it.
    """
    check_new(folder, overwrite)
    with contextlib.ExitStack() as stack:
        with _naming(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            if _is_locked(folder, stack):
                with contextlib.suppress(OSError):  # some folders can be written but not read
                    _clear(folder)
        check_new(folder, overwrite)
        new, old = (folder.with_name(f".{folder.name}.{mark}") for mark in _marks())
        with _naming(folder):
            new.mkdir()
        try:
            yield new
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        _exchange(new, old, folder, overwrite)


def _is_locked(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Lock a name until the stack ends; False if that cannot be done here."""
    try:
        return stack.enter_context(locked(folder.parent, f".{folder.name}.lock", folder))
    except PermissionError:  # it is another user's, who was killed, or nothing can be written here
        return False


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Name the folder, if a place beside it cannot be written to."""
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"--out must be a place that can be written to, got {folder} ({error.strerror}); "
            "choose another"
        ) from error


def _marks() -> list[str]:
    """Ends of the hidden names: of the folder that is written, and of one that it replaces."""
    mark = f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return [f"{mark}.{end}" for end in ("new", "old")]


def _host() -> str:
    """This host, for a name of a file."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _clear(folder: Path) -> None:
    """Remove what processes of this host that no longer run have left beside a folder.

    One that was killed between its last two renames had finished: they are completed.
    """
    name = re.compile(
        rf"\.{re.escape(folder.name)}\.{_host()}-(\d{{1,9}})-[0-9a-f]{{8}}\.(new|old)"
    )
    found = [(path, name.fullmatch(path.name)) for path in sorted(folder.parent.iterdir())]
    left = [path for path, match in found if match and not _is_running(int(match[1]))]
    for path in left:
        new = path.with_suffix(".new")
        if path.suffix == ".old" and new in left and not os.path.lexists(folder):
            new.rename(folder)
    for path in left:
        shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _exchange(new: Path, old: Path, folder: Path, overwrite: bool) -> None:
    """Give a complete folder its name; if that is taken, another one, which the error says."""
    try:
        check_new(folder, overwrite)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    except OSError as error:
        reason = error.strerror or "it was made while this process worked"
        raise type(error)(
            f"{folder} could not be written in the end ({reason}); the result is kept in "
            f"{_kept(new, folder)}"
        ) from error
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def _kept(new: Path, folder: Path) -> Path:
    """Rename a complete folder to a name beside the one that it cannot have."""
    names = (folder.with_name(f"{folder.name}-{i}") for i in count(2))
    free = next(name for name in names if not os.path.lexists(name))
    try:
        return new.rename(free)
    except OSError:
        return new

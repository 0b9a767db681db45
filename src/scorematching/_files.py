"""Files: replaced atomically, compared by checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def utf8(text: str) -> bytes:
    r"""A text in UTF-8; bytes of file names that are in another encoding become ``\udcfc``.

    Example:
        >>> utf8("w" + chr(0xDCFC) + ".csv")  # a name in latin-1, as Python reads it
        b'w\\udcfc.csv'
    """
    return text.encode(errors="backslashreplace")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write a file under inside the block; the file then replaces another, atomically.

    Such files of killed processes end in ``.tmp``.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        flush(temporary, os.O_RDWR)
        os.replace(temporary, path)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            flush(path.parent, os.O_RDONLY)
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path, mode: int) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    """The sha256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writing(path: Path, advice: str) -> Iterator[None]:
    """Name the file and what to do, if writing it inside the block fails.

    Raises:
        OSError: of the same kind as the error it replaces; that of safetensors included.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as caught:
        # Of nested blocks the outer one, which knows what was being done, has the advice.
        error = caught.__cause__ if isinstance(caught.__cause__, OSError) else caught
        reason = getattr(error, "strerror", None) or str(error)
        number = getattr(error, "errno", None) or errno.EIO
        raise OSError(number, f"{path} could not be written ({reason}); {advice}") from error


def own_checksum(document: Mapping[str, Any]) -> str:
    """The sha256 of a JSON object without its entry "checksum"."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

"""The files of a checkpoint, written atomically and compared with their checksums when read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scorematching._files import checksum, own_checksum, replacing, write_atomically
from scorematching.errors import CheckpointError

INDEX, PREVIOUS = "checkpoint.json", "previous.json"
FORMAT = 1

Tensors = dict[str, Tensor]
Index = dict[str, Any]

_FILE = re.compile(r"(last|best)-\d+\.safetensors")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Replace a file of tensors atomically."""
    from safetensors.torch import save_file

    # Copies, since the format cannot hold tensors that share memory.
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    with replacing(path) as temporary:
        save_file(plain, temporary)


def write_index(folder: Path, files: Mapping[str, str], state: Mapping[str, Any]) -> None:
    """Replace the index; the one before it becomes `PREVIOUS`."""
    checksums = {name: checksum(folder / name) for name in files.values()}
    index: Index = {"format": FORMAT, "files": dict(files), "checksums": checksums, **state}
    index["checksum"] = own_checksum(index)
    if (folder / INDEX).exists():
        write_atomically(folder / PREVIOUS, (folder / INDEX).read_bytes())
    write_atomically(folder / INDEX, json.dumps(index, indent=1).encode())


def read_index(path: Path) -> Index:
    """An index whose checksum is right.

    Raises:
        CheckpointError: names the file, if it is damaged.
        ValueError: if it was written by another version of the format.
    """
    try:
        index = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} must hold a checkpoint in JSON, got: {error}") from error
    if not isinstance(index, dict) or not {"format", "files", "step"} <= set(index):
        raise CheckpointError(f"{path} must describe a checkpoint, got something else")
    if index["format"] != FORMAT:
        raise ValueError(
            f"{path} must hold a checkpoint of format {FORMAT}, got format {index['format']!r}; "
            "load it with the version of the package that wrote it"
        )
    sealed = "checksum" in index or "checksums" in index  # earlier versions had neither
    if sealed and index.get("checksum") != own_checksum(index):
        raise CheckpointError(f"{path} must have its own checksum, got another: it was changed")
    files, checksums = index["files"], index.get("checksums", {})
    sound = isinstance(files, dict) and isinstance(checksums, dict) and "last" in files
    # Files are named as we name them, so that an index cannot point elsewhere.
    if not sound or not all(isinstance(f, str) and _FILE.fullmatch(f) for f in files.values()):
        raise CheckpointError(f"{path} must name files such as last-100.safetensors, got {files!r}")
    return index


def read_tensors(folder: Path, index: Index, name: str) -> Tensors | None:
    """The tensors of a file with the right checksum, "last" or "best"; None if there is no such.

    Raises:
        CheckpointError: names the file, if it is missing or damaged.
    """
    if name not in index["files"]:
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / index["files"][name]
    try:
        wanted = index["checksums"].get(path.name, "none") if "checksums" in index else None
        if wanted is not None and checksum(path) != wanted:
            raise CheckpointError(
                f"{path} must have the checksum in {INDEX}, got another: it was truncated or "
                "changed after it was written"
            )
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} must be a file of tensors, got: {error}") from error


def named_files(folder: Path) -> set[str]:
    """The files of tensors that the indices of a folder name; those of a damaged index are none."""
    found: set[str] = set()
    for index in (INDEX, PREVIOUS):
        try:
            found |= set(read_index(folder / index)["files"].values())
        except ValueError:  # missing, or damaged
            continue
    return found


def remove_others(folder: Path) -> None:
    """Remove the files of older checkpoints, and those that a killed process left behind."""
    named = named_files(folder)
    for pattern in ("last-*.safetensors*", "best-*.safetensors*", "*.tmp"):
        for path in folder.glob(pattern):
            if path.name not in named:
                path.unlink(missing_ok=True)

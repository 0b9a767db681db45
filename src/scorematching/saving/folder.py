"""The folder: written completely or not at all, and read only if every file is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from scorematching._files import flush, own_checksum, utf8
from scorematching.errors import SavedModelError

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT = 1


class Contents(NamedTuple):
    """What a folder holds.

    Attributes:
        config: in JSON.
        tensors: by name.
        card: the text of README.md.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    card: str


def check_target(folder: Path, overwrite: bool) -> None:
    """Refuse to write over anything but, with ``overwrite``, a saved model.

    Raises:
        FileExistsError: if the folder exists.
    """
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise FileExistsError(
            f"folder must not exist, got {folder}; pass overwrite=True to replace the model in it, "
            "or another folder"
        )
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {str(folder)}
    if folder.is_symlink() or names - {CONFIG, WEIGHTS, CARD} or (names and CONFIG not in names):
        raise FileExistsError(
            f"folder must be a saved model to be replaced, got {folder} with other contents; "
            "choose another folder"
        )


def write(folder: Path, contents: Contents, overwrite: bool) -> None:
    """Write to a temporary folder beside the target, and rename it."""
    files = _files(contents)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(folder)
    try:
        new.mkdir()
        for name, content in files.items():
            _write_file(new / name, content)
        _exchange(new, folder, overwrite)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a folder, after all checksums have been compared.

    Raises:
        FileNotFoundError: if there is no such folder.
        SavedModelError: if it is no saved model, or a file is missing, truncated or changed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"folder must be the folder of a saved model, got {folder}, which is none; pass the "
            "folder that was given to save"
        )
    config = _read_config(folder)
    found = {name: _checked(folder, name, digest) for name, digest in config["files"].items()}
    if set(found) != {WEIGHTS, CARD}:
        raise SavedModelError(
            f"{CONFIG} must list {WEIGHTS} and {CARD}, got {list(found)}; save the model again"
        )
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return config, load(found[WEIGHTS])
    except SafetensorError as error:
        raise SavedModelError(
            f"{folder / WEIGHTS} must be a safetensors file, got: {error}; save it again"
        ) from error


def _files(contents: Contents) -> dict[str, bytes]:
    """The content of all files; the config holds the checksums of the others and its own."""
    from safetensors.torch import save

    files = {WEIGHTS: save(contents.tensors), CARD: utf8(contents.card)}
    digests = {name: _digest(content) for name, content in files.items()}
    config = {"format": FORMAT, **contents.config, "files": digests}
    config["checksum"] = own_checksum(config)
    text = json.dumps(config, indent=1, allow_nan=False)
    return {**files, CONFIG: text.encode()}


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        inside = [below.parent for below in sorted(folder.glob(f"*/{CONFIG}"))]
        advice = "checkpoints of training are loaded with training.load_weights"
        raise SavedModelError(
            f"folder must hold a saved model, got {folder} without {CONFIG}; "
            + (f"there is one in {inside[0]}" if inside else advice)
        ) from None
    except (ValueError, RecursionError) as error:
        raise SavedModelError(f"{path} must be JSON, got: {error}; save it again") from error
    known = isinstance(config, dict) and {"format", "files", "checksum", "model"} <= set(config)
    if not known or not isinstance(config["files"], dict):
        raise SavedModelError(
            f"{path} must describe a model of this package, got another file; models of other "
            "programs are loaded with those"
        )
    if config["format"] != FORMAT:
        raise SavedModelError(
            f"{path} must have format {FORMAT}, got {config['format']!r}; load it with the version "
            "of the package that wrote it"
        )
    if config["checksum"] != own_checksum(config):
        raise SavedModelError(_changed(path))
    return config


def _checked(folder: Path, name: str, digest: str) -> bytes:
    if name not in (WEIGHTS, CARD):
        raise SavedModelError(
            f"{CONFIG} must list {WEIGHTS} and {CARD}, got {name!r}; save the model again"
        )
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SavedModelError(
            f"{path} must be readable, got: {error}; copy the whole folder"
        ) from error
    if _digest(content) != digest:
        raise SavedModelError(_changed(path))
    return content


def _changed(path: Path) -> str:
    return (
        f"{path} must have the checksum in {CONFIG}, got another: the file was truncated or "
        "changed after saving; copy the folder again, or save the model again"
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    flush(path, os.O_RDWR)


def _exchange(new: Path, folder: Path, overwrite: bool) -> None:
    """Rename a new folder to its name; the one it replaces is removed afterwards.

    A process that is killed between the two renames leaves the old model under a hidden name.
    """
    check_target(folder, overwrite)  # somebody else may have written it meanwhile
    old = _beside(folder) if folder.exists() else None
    if old is not None:
        os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        if old is not None:
            os.rename(old, folder)
        raise
    if os.name == "posix":  # elsewhere a folder cannot be opened
        flush(folder.parent, os.O_RDONLY)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")

"""Tables as files, written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from scorematching._extras import import_extra

SUFFIXES = (".csv", ".tsv", ".parquet")


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse a file that exists, or of another format.

    Raises:
        FileExistsError: if it exists.
        FileNotFoundError: if its folder does not.
        ValueError: if its suffix is unknown.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out must end with {', '.join(SUFFIXES)}, got {path}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; pass --overwrite, or another file to --out")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")


def write_frame(frame: Any, path: Path) -> None:
    """Write a data frame under a temporary name, and rename it."""
    suffix = path.suffix.lower()
    new = path.with_name(f".{path.name}.new{suffix}")
    try:
        if suffix == ".parquet":
            import_extra("pyarrow", "tables")
            frame.to_parquet(new)
        else:
            frame.to_csv(new, index=False, sep="\t" if suffix == ".tsv" else ",")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)

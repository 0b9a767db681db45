"""Tables as files, written completely or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scorematching._extras import import_extra
from scorematching._files import replacing, writing

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
    """Write a data frame under a temporary name, and rename it.

    Raises:
        OSError: naming the file, if it could not be written.
        ValueError: naming the file, if parquet cannot hold a value.
    """
    suffix = path.suffix.lower()
    with writing(path, "free space, or choose another place for --out"), replacing(path) as new:
        if suffix == ".parquet":
            arrow = import_extra("pyarrow", "tables")
            try:
                frame.to_parquet(new)
            except (arrow.ArrowException, OverflowError) as error:  # as for 10**25
                reason = str(error).splitlines()[0]
                raise ValueError(
                    f"{path} must have values that parquet can hold, got: {reason}; write .csv"
                ) from error
        else:
            frame.to_csv(new, index=False, sep="\t" if suffix == ".tsv" else ",")

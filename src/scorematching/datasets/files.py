"""Search, verification and download of data files.

A file is searched for beside this module, then in ``data_dir``, then in the folder named by the
environment variable SCOREMATCHING_DATA, then in the user's cache; in each of these directly or in
the file's own subfolder. Its sha256 is checked before it is read. Files are downloaded only on
request.
"""

import os
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from scorematching._files import checksum, replacing
from scorematching.errors import DataNotFoundError

ENVIRONMENT_VARIABLE = "SCOREMATCHING_DATA"

PathLike = str | os.PathLike[str]

_TIMEOUT = 60.0  # seconds without an answer of the server


@dataclass(frozen=True)
class DataFile:
    """A published file, the subfolder it may be in, and addresses of it, tried in order."""

    name: str
    folder: str
    sha256: str
    urls: tuple[str, ...] = ()


def find(file: DataFile, data_dir: PathLike | None = None, download: bool = False) -> Path:
    """The path of a file with the right checksum.

    With ``download=True`` a missing file is downloaded into the first folder that is searched.

    Raises:
        DataNotFoundError: the file is in none of the folders, or could not be downloaded.
        ValueError: its checksum is wrong.
    """
    places = _places(data_dir)
    candidates = [place / part / file.name for place in places for part in ("", file.folder)]
    for path in (Path(__file__).with_name(file.name), *candidates):
        if path.is_file():
            check_sha256(path, file)
            return path
    if download:
        return _download(file, places)
    raise DataNotFoundError(_missing(file, places))


def check_sha256(path: Path, file: DataFile) -> None:
    """Require the published checksum."""
    got = checksum(path)
    if got != file.sha256:
        raise ValueError(
            f"{path} must have sha256 {file.sha256}, got {got}; "
            "it is damaged or another version: delete it and download it again"
        )


def _places(data_dir: PathLike | None) -> list[Path]:
    """The folders to search, in order."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "scorematching")
    wanted = (data_dir, os.environ.get(ENVIRONMENT_VARIABLE), cache)
    return [Path(place).expanduser() for place in wanted if place]


def _missing(file: DataFile, places: list[Path]) -> str:
    source = (
        "download=True, or `scorematching datasets --download NAME`, fetches it"
        if file.urls
        else "it has no public address to fetch it from"
    )
    return (
        f"{file.name} (sha256 {file.sha256}) was not found in "
        f"{', '.join(map(str, places))}, nor in a subfolder {file.folder} of these; "
        f"put it in {places[0] / file.folder}, or name its folder by data_dir= or by the "
        f"environment variable {ENVIRONMENT_VARIABLE} ({source})"
    )


def _download(file: DataFile, places: list[Path]) -> Path:
    """Download a file from the first address that answers."""
    failures = []
    for url in file.urls:
        try:
            return _fetch(url, file, places[0] / file.folder / file.name)
        except OSError as error:
            failures.append(f"{url}: {error}")
    raise DataNotFoundError("; ".join([_missing(file, places), *failures]))


def _fetch(url: str, file: DataFile, target: Path) -> Path:
    """Download under a temporary name, so that the target is never incomplete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as path:
        _stream(url, path, file.name)
        check_sha256(path, file)
    return target


def _stream(url: str, path: Path, name: str) -> None:
    from rich.console import Console
    from rich.progress import wrap_file

    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, path.open("wb") as out:
        size = int(answer.headers.get("Content-Length") or 0)
        console = Console(stderr=True)
        with wrap_file(answer, size, description=name, console=console) as stream:
            shutil.copyfileobj(stream, out)

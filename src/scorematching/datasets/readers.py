"""Readers of the published file formats.

Archives are read in memory, never unpacked to files, and what they claim to hold is limited before
it is read.
"""

import csv
import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Table = tuple[tuple[str, ...], NDArray[np.float64]]
"""Names of the columns, and the rows ``(N, D)``."""

Pixels = NDArray[np.uint8]
"""Images ``(N, C, H, W)``, 0 to 255."""

_IDX_IMAGES = bytes([0, 0, 0x08, 3])  # an idx file of unsigned bytes with three axes
_TILE = 64
_MAX_BYTES = 1 << 30  # of one file in an archive, or of all images in an idx file


def read_table(path: Path, delimiter: str, columns: slice = slice(None)) -> Table:
    """The names and rows ``(N, D)`` of a table of numbers with one line of column names.

    Raises:
        ValueError: names the file, if it holds something else.
    """
    with _naming(path, "a table of numbers"), path.open(newline="", encoding="utf-8") as lines:
        names = next(csv.reader(lines, delimiter=delimiter), None)
        first = lines.readline()
        if not names or not first.strip():
            raise ValueError("no rows below a line of names")
        rows = np.loadtxt(chain([first], lines), delimiter=delimiter, ndmin=2)
        if len(names) != rows.shape[1]:
            raise ValueError(f"{rows.shape[1]} columns with {len(names)} names")
    return tuple(names[columns]), rows[:, columns]


def read_idx_images(path: Path) -> Pixels:
    """Grey images ``(N, 1, H, W)`` in the gzipped idx format of MNIST.

    Raises:
        ValueError: the file has another format, or is incomplete.
    """
    with _naming(path, "a gzipped idx file"), gzip.open(path) as stream:
        content = stream.read(16)
        if len(content) == 16 and content.startswith(_IDX_IMAGES):
            content += stream.read(min(_MAX_BYTES, _idx_bytes(content)[0]) + 1)
    if not content.startswith(_IDX_IMAGES):
        raise ValueError(
            f"{path} must be an idx file of bytes with 3 axes (it starts 00 00 08 03), "
            f"got {content[:4].hex(' ') or 'an empty file'}; labels are not images"
        )
    total, (n, height, width) = _idx_bytes(content)
    if len(content) != 16 + total:
        raise ValueError(
            f"{path} must hold {n} images of {height} x {width} bytes, "
            f"got {max(0, len(content) - 16)} bytes or more; download the file again"
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(n, 1, height, width)


def read_mosaics(path: Path) -> Pixels:
    """Colour images ``(N, 3, 64, 64)``, packed as tiles of larger AVIF images in a zip file.

    Args:
        path: a zip file with ``ids.npy``, one number per image, and ``mosaic_*.avif``, whose
            tiles are the images in order, row by row; tiles beyond the last image are padding.

    Raises:
        ImportError: Pillow cannot read AVIF.
        ValueError: the mosaics hold fewer images than there are ids.
    """
    from PIL import Image, features

    if not features.check("avif"):
        raise ImportError("this Pillow was built without AVIF; pip install 'pillow>=11.3'")
    with _naming(path, "a zip file of mosaics"), zipfile.ZipFile(path) as pack:
        n = len(np.load(io.BytesIO(_content(pack, "ids.npy")), allow_pickle=False))
        names = sorted(name for name in pack.namelist() if name.endswith(".avif"))
        files = (io.BytesIO(_content(pack, name)) for name in names)
        mosaics = (np.asarray(Image.open(file).convert("RGB")) for file in files)
        tiles = np.concatenate([_cut(mosaic) for mosaic in mosaics])
    if len(tiles) < n:
        raise ValueError(
            f"{path} must hold {n} images, got {len(tiles)} tiles; download the file again"
        )
    return tiles[:n]


@contextmanager
def _naming(path: Path, wanted: str) -> Iterator[None]:
    """Name the file, if what is read inside the block is not what was wanted.

    Raises:
        ValueError: instead of the many errors of archives and pictures.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be {wanted}, got: {error}; it is damaged or another file: download it "
            "again"
        ) from error


def _idx_bytes(content: bytes) -> tuple[int, list[int]]:
    """Bytes of all images of an idx file, and number, height and width, from its first 16 bytes."""
    if len(content) < 16:
        return 0, [0, 0, 0]
    axes = np.frombuffer(content, ">u4", count=3, offset=4).tolist()
    return axes[0] * axes[1] * axes[2], axes


def _content(pack: zipfile.ZipFile, name: str) -> bytes:
    """A file of an archive, which must not be larger than any that was published."""
    size = pack.getinfo(name).file_size
    if size > _MAX_BYTES:
        raise ValueError(f"{name} of {size} bytes, more than {_MAX_BYTES}")
    return pack.read(name)


def _cut(mosaic: Pixels) -> Pixels:
    """``(R 64, C 64, 3) -> (R C, 3, 64, 64)``, row by row."""
    rows, columns = (size // _TILE for size in mosaic.shape[:2])
    tiles = mosaic.reshape(rows, _TILE, columns, _TILE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _TILE, _TILE)

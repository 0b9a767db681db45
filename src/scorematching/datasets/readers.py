"""Readers of the published file formats."""

import csv
import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = tuple[tuple[str, ...], NDArray[np.float64]]
"""Names of the columns, and the rows ``(N, D)``."""

Pixels = NDArray[np.uint8]
"""Images ``(N, C, H, W)``, 0 to 255."""

_IDX_BYTES = 0x08  # the type code of unsigned bytes, the third byte of an idx file
_TILE = 64


def read_table(path: Path, delimiter: str, columns: slice = slice(None)) -> Table:
    """The names and rows ``(N, D)`` of a table of numbers with one line of column names.

    Args:
        path: a text file.
        delimiter: between two columns.
        columns: the columns to keep.
    """
    with path.open(newline="", encoding="utf-8") as lines:
        names = next(csv.reader(lines, delimiter=delimiter))
        rows = np.loadtxt(lines, delimiter=delimiter, ndmin=2)
    return tuple(names[columns]), rows[:, columns]


def read_idx_images(path: Path) -> Pixels:
    """Grey images ``(N, 1, H, W)`` in the gzipped idx format of MNIST.

    Args:
        path: a gzipped idx file of unsigned bytes with three axes.

    Raises:
        ValueError: the file has another format, or is incomplete.
    """
    with gzip.open(path) as stream:
        content = stream.read()
    if content[:4] != bytes([0, 0, _IDX_BYTES, 3]):
        raise ValueError(
            f"{path} must be an idx file of bytes with 3 axes (it starts 00 00 08 03), "
            f"got {content[:4].hex(' ') or 'an empty file'}; labels are not images"
        )
    n, height, width = np.frombuffer(content, ">u4", count=3, offset=4).tolist()
    if len(content) != 16 + n * height * width:
        raise ValueError(
            f"{path} must hold {n} images of {height} x {width} bytes, "
            f"got {len(content) - 16} bytes; download the file again"
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(n, 1, height, width)


def read_mosaics(path: Path) -> Pixels:
    """Colour images ``(N, 3, 64, 64)``, packed as tiles of larger AVIF images in a zip file.

    Args:
        path: a zip file with ``ids.npy``, one number per image, and ``mosaic_*.avif``, whose
            tiles are the images in order, row by row; tiles beyond the last image are padding.

    Raises:
        ImportError: Pillow is missing or cannot read AVIF.
        ValueError: the mosaics hold fewer images than there are ids.
    """
    image = _import_avif_reader()
    with zipfile.ZipFile(path) as pack:
        n = len(np.load(io.BytesIO(pack.read("ids.npy"))))
        names = sorted(name for name in pack.namelist() if name.endswith(".avif"))
        tiles = np.concatenate([_cut(_decode(image, pack.read(name))) for name in names])
    if len(tiles) < n:
        raise ValueError(
            f"{path} must hold {n} images, got {len(tiles)} tiles; download the file again"
        )
    return tiles[:n]


def _import_avif_reader() -> Any:
    advice = "pip install 'pillow>=11.3'"
    try:
        from PIL import Image, features
    except ImportError as error:
        raise ImportError(f"reading AVIF images needs Pillow; {advice}") from error
    if not features.check("avif"):
        raise ImportError(f"this Pillow was built without AVIF; {advice}")
    return Image


def _decode(image: Any, content: bytes) -> Pixels:
    """``(H, W, 3)``."""
    with image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def _cut(mosaic: Pixels) -> Pixels:
    """``(R 64, C 64, 3) -> (R C, 3, 64, 64)``, row by row."""
    rows, columns = (size // _TILE for size in mosaic.shape[:2])
    tiles = mosaic.reshape(rows, _TILE, columns, _TILE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _TILE, _TILE)

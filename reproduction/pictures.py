"""Sheets of many small images, and figures of many sheets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

GAP = 2
"""Pixels between the images of a sheet."""


def tile(images: Tensor, columns: int) -> Tensor:
    """Images side by side, row by row, on white.

    Args:
        images: ``(N, C, H, W)``, values clipped to 0..1; C is 1 or 3.
        columns: images in a row.

    Returns:
        Bytes ``(C, R (H + GAP) + GAP, columns (W + GAP) + GAP)`` for R rows.

    Example:
        >>> tile(torch.zeros(5, 1, 4, 4), columns=3).shape
        torch.Size([1, 14, 20])
    """
    n, channels, height, width = images.shape
    rows = -(-n // columns)
    size = rows * (height + GAP) + GAP, columns * (width + GAP) + GAP
    sheet = torch.full((channels, *size), 255, dtype=torch.uint8)
    pixels = (images.detach().clamp(0, 1) * 255).round().to("cpu", torch.uint8)
    for i, image in enumerate(pixels):
        top, left = (GAP + k * (s + GAP) for k, s in zip(divmod(i, columns), (height, width)))
        sheet[:, top : top + height, left : left + width] = image
    return sheet


def save_sheet(path: Path, images: Tensor, columns: int = 10) -> Path:
    """Write images ``(N, C, H, W)``, C = 1 or 3, as one PNG; see `tile`."""
    from PIL import Image

    sheet = tile(images, columns).permute(1, 2, 0)
    pixels = (sheet[..., 0] if sheet.shape[-1] == 1 else sheet).numpy()
    Image.fromarray(pixels).save(path)
    return path


def save_pairs(path: Path, images: Tensor, copies: Tensor, columns: int = 10) -> Path:
    """Write images and their reconstructions: a row of images above a row of copies, repeated.

    Images that do not fill a row are left out.
    """
    columns = min(columns, len(images))
    count = len(images) // columns * columns
    rows = zip(images[:count].split(columns), copies[:count].split(columns))
    return save_sheet(path, torch.cat([part for pair in rows for part in pair]), columns)


def panels(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure and its axes, three in a row, each ``width`` by ``height`` inches."""
    from matplotlib.figure import Figure

    columns, rows = max(1, min(3, count)), max(1, math.ceil(count / 3))
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def combine(cells: Mapping[tuple[str, str], Path], path: Path, title: str) -> Path:
    """Write a figure of sheets in named rows and columns.

    Args:
        cells: paths of sheets by row and column; other places are left empty.
        path: of the figure.
        title: of the figure.
    """
    from matplotlib.figure import Figure
    from PIL import Image

    rows, columns = (list(dict.fromkeys(key[axis] for key in cells)) for axis in (0, 1))
    size = 3.2 * len(columns) + 0.8, 3.3 * len(rows) + 0.5
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    for (row, column), sheet in cells.items():
        axis = axes[rows.index(row)][columns.index(column)]
        with Image.open(sheet) as picture:
            axis.imshow(picture.convert("RGB"))
    for axis, name in zip(axes[0], columns):
        axis.set_title(name)
    for axis, name in zip(axes[:, 0], rows):
        axis.set_ylabel(name)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    return path

"""Files as blocks of rows that can be read in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

BLOCK_BYTES = 1 << 20
"""Size of the blocks into which a file without blocks of its own is cut."""


class Source(ABC):
    """Rows of a file, in blocks.

    Attributes:
        path: the file, or a folder of files.
        columns: names of the columns; empty where points are no rows of a table.
        event: shape of a point.
        sizes: number of rows of each block.
        row_bytes: bytes of a row while its block is being read.
    """

    path: Path
    columns: tuple[str, ...] = ()
    event: tuple[int, ...]
    sizes: Sequence[int]
    row_bytes: int

    @abstractmethod
    def read(self, block: int) -> Tensor:
        """The rows of a block, ``(rows, *event)``, in the dtype of the file."""

    def require_finite(self, x: Tensor, found: Tensor, before: int) -> None:
        """Require finite rows.

        Args:
            x: the rows, in the dtype in which they must be finite.
            found: the same rows as they are in the file.
            before: rows of the file before these.

        Raises:
            ValueError: names row and column.
        """
        # A finite sum has finite terms, and takes a tenth of the time of a test of each.
        if not x.sum(dtype=torch.float64).isfinite() and not x.isfinite().all():
            row, *place = (~x.isfinite()).nonzero()[0].tolist()
            raise ValueError(
                f"data must be finite in {x.dtype}, got {found[row, *place].item()} in row "
                f"{before + row}, {self.column(place)}, of {self.path}; remove or replace missing "
                "values first"
            )

    def column(self, place: Sequence[int]) -> str:
        """The name of a coordinate of a point."""
        return (
            f"column {self.columns[place[0]]!r}" if self.columns else f"coordinate {tuple(place)}"
        )


def choose_columns(
    path: Path, known: Sequence[str], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    """The wanted columns, or all.

    Raises:
        ValueError: if one is unknown or given twice.
    """
    if wanted is None:
        return tuple(known)
    unknown = [name for name in wanted if name not in known]
    if isinstance(wanted, str) or unknown or not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(
            f"columns must be different names among {', '.join(known)} of {path}, got {wanted!r}; "
            "leave it out for all of them"
        )
    return tuple(wanted)

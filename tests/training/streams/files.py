"""Small files of every format, with small blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_GROUP = 7


def write_npy(path: Path, x: np.ndarray) -> Path:
    np.save(path.with_suffix(".npy"), x)
    return path.with_suffix(".npy")


def write_parquet(path: Path, x: np.ndarray) -> Path:
    table = pa.table({f"x{i}": column for i, column in enumerate(x.T)})
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=ROWS_PER_GROUP)
    return path.with_suffix(".parquet")


def write_folder(path: Path, x: np.ndarray) -> Path:
    path.mkdir()
    for i, part in enumerate(np.array_split(x, 3)):
        write_parquet(path / f"part-{i}", part)
    return path


def write_csv(path: Path, x: np.ndarray) -> Path:
    names = ",".join(f"x{i}" for i in range(x.shape[1]))
    np.savetxt(path.with_suffix(".csv"), x, delimiter=",", header=names, comments="", fmt="%.17g")
    return path.with_suffix(".csv")


WRITERS: dict[str, Callable[[Path, np.ndarray], Path]] = {
    "npy": write_npy,
    "parquet": write_parquet,
    "folder": write_folder,
    "csv": write_csv,
}

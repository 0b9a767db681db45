"""Tables in parquet files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from scorematching.training.streams.arrow import import_arrow, to_rows
from scorematching.training.streams.source import Source, choose_columns

_INDEX = re.compile(r"__index_level_\d+__")
"""The column that pandas writes for an index without a name."""


class ParquetSource(Source):
    """Columns of numbers in a parquet file, or in a folder of such files; blocks are row groups.

    Raises:
        ImportError: if pyarrow is missing.
        ValueError: if the files are damaged, or a column holds no numbers.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        self.arrow = import_arrow()
        self.path = path
        try:
            data = self.arrow.dataset.dataset(path, format="parquet")
            parts = [part for file in data.get_fragments() for part in file.split_by_row_group()]
            schema, self.sizes = data.schema, [part.row_groups[0].num_rows for part in parts]
        except (self.arrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{path} must be parquet, got: {str(error).splitlines()[0]}; write it with "
                "pyarrow.parquet.write_table"
            ) from error
        self.parts = [part for part, size in zip(parts, self.sizes) if size]
        self.sizes = [size for size in self.sizes if size]
        known = schema.names
        if columns is None:  # the index of a data frame, which has no name, is no measurement
            known = [name for name in known if not _INDEX.fullmatch(name)]
        self.columns = choose_columns(path, known, columns)
        self.event = (len(self.columns),)
        types = [schema.field(name).type for name in self.columns]
        for name, kind in zip(self.columns, types):
            _check_type(self.arrow, path, name, kind)
        self.row_bytes = sum(max(8, kind.bit_width) // 8 for kind in types)

    def read(self, block: int) -> Tensor:
        """The rows of a row group."""
        try:
            table = self.parts[block].to_table(
                columns=list(self.columns),
                use_threads=False,
                memory_pool=self.arrow.system_memory_pool(),  # which returns what is freed
            )
        except (self.arrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{self.path} must be readable, got an error in row group {block}: "
                f"{str(error).splitlines()[0]}; the file is damaged, write it again"
            ) from error
        return to_rows(table)


def _check_type(arrow: Any, path: Path, name: str, kind: Any) -> None:
    types = arrow.types
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(
            f"columns must hold numbers, got {name!r} of type {kind} in {path}; choose others "
            "with columns=, or convert it"
        )

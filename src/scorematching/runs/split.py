"""Which rows are held out, and noise for rounded columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scorematching.datasets import Dequantise
from scorematching.estimators.density.copies import are_copies
from scorematching.tables import Prepared
from scorematching.tables.prepare import fitted_to

_SHARE, _MAX = 0.2, 5000


def held_out_rows(x: NDArray[np.float64], seed: int, copies: bool = True) -> NDArray[np.int64]:
    """A fifth of the rows at random, at most 5,000; copies of a row stay together.

    Args:
        x: rows ``(N, D)``.
        seed: of the choice.
        copies: whether equal rows are copies; False takes every row for itself.

    Returns:
        Their numbers, in order.

    Example:
        >>> rows = held_out_rows(np.arange(40.0).reshape(20, 2), seed=0)
        >>> len(rows), bool((np.diff(rows) > 0).all())
        (4, True)
    """
    group = torch.arange(len(x))
    if copies:
        _, group = torch.tensor(x).unique(dim=0, return_inverse=True)
    count = int(group.max()) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[order[: min(max(2, round(_SHARE * count)), _MAX)]] = True
    return chosen[group].nonzero().flatten().numpy()


def split_table(table: Prepared, seed: int) -> tuple[Prepared, NDArray[np.int64]]:
    """A table whose columns vary among the training rows, and the rows that are held out.

    Args:
        table: from `prepare`.
        seed: of the split.
    """
    x = table.frame.to_numpy()
    held = held_out_rows(x, seed, are_copies(table.table.reduce(torch.tensor(x))))
    rest = np.setdiff1d(np.arange(len(table.frame)), held)
    return fitted_to(table, rest), held


@dataclass(frozen=True, eq=False)
class Parts:
    """Training and test rows of a table.

    Attributes:
        frame: all rows, in the columns that the model takes.
        held: numbers of the rows that are held out.
        width: of the noise in rounded columns, by name of modelled columns.
        seed: of the noise.
        common: values that many rows share, as in `Prepared`.
    """

    frame: Any
    held: NDArray[np.int64]
    width: dict[str, float]
    seed: int
    common: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def copies(self) -> bool:
        """Whether equal rows are copies, which count once, and do not repeat by chance."""
        return are_copies(torch.tensor(self.frame[list(self.width)].to_numpy()))

    @property
    def train(self) -> Any:
        """Rows to fit to."""
        return self.frame.drop(index=self.held)

    @property
    def train_noisy(self) -> Any:
        """The same with noise in rounded columns."""
        return add_noise(self.train, self.width, self.seed, self.common)

    @property
    def test(self) -> Any:
        """Held-out rows, copies left out, with noise in rounded columns."""
        rows = self.frame.iloc[self.held]
        rows = rows.drop_duplicates() if self.copies else rows
        return add_noise(rows, self.width, self.seed + 1, self.common)


def add_noise(
    frame: Any, width: dict[str, float], seed: int, common: dict[str, Any] | None = None
) -> Any:
    """A copy of a table with uniform noise in its rounded columns.

    Args:
        frame: with the columns of ``width`` and perhaps others.
        width: half the width of the noise, by name.
        seed: of the noise.
        common: values that many rows share, as in `Prepared`; None for none.
    """
    noisy, common = frame.copy(), common or {}
    columns = [name for name in frame.columns if width.get(name, 0.0) > 0 or name in common]
    if columns:
        x = torch.tensor(frame[columns].to_numpy())
        half = x.new_tensor([width[name] for name in columns]).repeat(len(x), 1)
        for place, name in enumerate(columns):
            if name in common:
                shared = torch.isin(x[:, place], x.new_tensor(common[name]["values"]))
                half[shared, place] = common[name]["width"]
        noisy[columns] = Dequantise(half)(x, torch.Generator().manual_seed(seed)).numpy()
    return noisy

"""Columns of a table that have no density of their own: constant, dependent, discrete."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorematching._rows import some_rows
from scorematching.estimators.density.relations import related_columns

_MAX_RATIO, _MAX_ROWS = 1e-6, 10_000
"""Largest share of a column's standard deviation that other columns leave unexplained."""

_MOST, _ROUNDING = 0.9, 100
"""Share of the rows that must be explained, and errors of rounding, in units of the last digit."""

_MAX_FACTOR = 1e6
"""Quotient of the 95% and 5% quantiles of a positive column above which a logarithm is advised."""

_DISCRETE_SHARE, _MIN_ROWS, _FEW_VALUES = 0.1, 20, 2
_SHOWN = 5

_SAME, _FOLLOWS = 1e-6, 1e-3
"""Differences from a constant, and from what follows from other columns, that count as rounding."""


@dataclass(frozen=True)
class Table:
    """Which columns of a table are modelled, and how the others follow from them.

    Attributes:
        names: of all columns.
        kept: indices of the columns that are modelled.
        constant: values of the constant columns, by index.
        dependent: for each column that is a linear function of the kept ones, by index, its
            intercept and coefficients ``(1 + K,)``.
        discrete: columns that take few values, by index, with their number of values.
        repeated: number of rows that repeat another row.

    Example:
        >>> x = torch.randn(30, 2).double()
        >>> table = inspect(torch.cat([x, x.sum(1, keepdim=True), torch.ones(30, 1)], 1))
        >>> table.kept, list(table.dependent), table.constant
        ([0, 1], [2], {3: 1.0})
    """

    names: tuple[str, ...]
    kept: list[int]
    constant: dict[int, float]
    dependent: dict[int, Tensor]
    discrete: dict[int, int]
    repeated: int

    def reduce(self, x: Tensor) -> Tensor:
        """The modelled columns, ``(N, D) -> (N, K)``."""
        return x[:, self.kept]

    def restore(self, z: Tensor) -> Tensor:
        """All columns from the modelled ones, ``(N, K) -> (N, D)``."""
        x = z.new_empty(len(z), len(self.names))
        x[:, self.kept] = z
        for column, value in self.constant.items():
            x[:, column] = value
        for column, line in self.dependent.items():
            x[:, column] = line[0] + z @ line[1:]
        return x

    def widen(self, gradient: Tensor) -> Tensor:
        """A gradient in the modelled columns as one in all, zero elsewhere."""
        wide = gradient.new_zeros(len(gradient), len(self.names))
        wide[:, self.kept] = gradient
        return wide

    def related(self, z: Tensor) -> list[list[int]]:
        """Sets of modelled columns ``(N, K)`` that are nonlinear functions of each other."""
        discrete = [place for place, c in enumerate(self.kept) if c in self.discrete]
        return [[self.kept[place] for place in found] for found in related_columns(z, discrete)]

    def wide(self, z: Tensor) -> list[int]:
        """Modelled columns ``(N, K)`` over so many orders of magnitude that they are fitted badly.

        They are positive, and given by index.
        """
        rows = some_rows(z, _MAX_ROWS)
        low, high = rows.quantile(rows.new_tensor([0.05, 0.95]), dim=0)
        found = (z.amin(0) > 0) & (high > _MAX_FACTOR * low)
        return [column for column, is_wide in zip(self.kept, found.tolist()) if is_wide]

    def warn(self, dequantised: bool, common: Tensor, z: Tensor) -> None:
        """One message about all columns that need attention.

        Args:
            dequantised: whether noise is added to discrete columns.
            common: values of modelled columns that many rows share, or NaN, ``(V, K)``.
            z: the modelled columns, ``(N, K)``.
        """
        parts = []
        if self.constant:
            parts.append(f"{self.name(self.constant)} constant and set aside")
        if self.dependent:
            parts.append(
                f"{self.name(self.dependent)} set aside, since the other columns determine "
                "it (a density exists only in the space of the others)"
            )
        if self.discrete and not dequantised:
            counts = ", ".join(str(n) for n in list(self.discrete.values())[:_SHOWN])
            parts.append(
                f"{self.name(self.discrete)} discrete or rounded ({counts} different values), "
                "where a density does not exist; it is that of the values with noise over the gaps "
                "between them: pass dequantise=True if you want it, or drop the column"
            )
        if shared := [c for c, value in zip(self.kept, common.mT) if value.isfinite().any()]:
            values = ", ".join(f"{value:g}" for value in common.T[common.T.isfinite()][:_SHOWN])
            parts.append(
                f"{self.name(shared)} several rows with one value ({values}) among different ones, "
                "where a density does not exist and likelihoods depend on how wide noise on that "
                "value is; fit rows with and without it apart, or drop the column"
            )
        parts += [
            f"{self.name(columns)} functions of each other, as a product, ratio or norm is, where "
            "a density does not exist and likelihoods only say how narrow the fit is; drop one of "
            "them"
            for columns in self.related(z)
        ]
        if parts:
            warnings.warn(f"X has columns without a density: {'; '.join(parts)}", stacklevel=6)
        if wide := self.wide(z):
            warnings.warn(
                f"X has columns over many orders of magnitude: {self.name(wide)} fitted as is, "
                "but their logarithms are fitted better; the log-density of X is that of the "
                "logarithms less their sum",
                stacklevel=6,
            )

    def warn_if_off(self, x: Tensor) -> None:
        """Warn where columns that were set aside differ from what `fit` found."""
        aside = [*self.constant, *self.dependent]
        if not aside:
            return
        expected = self.restore(self.reduce(x))[:, aside]
        scale = x[:, aside].abs().amax(0) + expected.abs().amax(0)
        share = x.new_tensor([_SAME] * len(self.constant) + [_FOLLOWS] * len(self.dependent))
        off = (x[:, aside] - expected).abs() > share * scale
        if bool(off.any()):
            named = self.name([c for c, any_off in zip(aside, off.any(0).tolist()) if any_off])
            warnings.warn(
                f"X differs in {int(off.any(1).sum())} rows from the values of "
                f"{named.removesuffix(':')} that follow from fit; these columns are ignored",
                stacklevel=5,
            )

    def name(self, columns: Any) -> str:
        """Columns by name, for messages."""
        names = [self.names[column] for column in columns]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        word = "column" if len(names) == 1 else "columns"
        return f"{word} {', '.join(names[:_SHOWN])}{more}:"


def inspect(x: Tensor, names: Sequence[Any] | None = None) -> Table:
    """Find constant, dependent and discrete columns of finite points ``(N, D)``, and repeated rows.

    Without names, columns are called by their numbers.
    """
    labels = tuple(map(repr, names)) if names is not None else tuple(map(str, range(x.shape[1])))
    rounding = 8 * torch.finfo(x.dtype).eps * x.abs().amax(0)
    is_constant = x.amax(0) - x.amin(0) <= rounding
    constant = {c: x[0, c].item() for c in is_constant.nonzero().flatten().tolist()}
    varying = (~is_constant).nonzero().flatten().tolist()
    kept, dependent = _dependent(x, varying)
    rows = len(x.unique(dim=0))
    # Values that repeat only because whole rows do are not discrete.
    whole = rows if x.shape[1] > 1 else -1
    discrete = {c: n for c in kept if (n := _few_values(x[:, c])) is not None and n != whole}
    return Table(labels, kept, constant, dependent, discrete, len(x) - rows)


def _dependent(x: Tensor, columns: list[int]) -> tuple[list[int], dict[int, Tensor]]:
    """Columns that the ones before do not determine, and the others as functions of them."""
    rows = some_rows(x, _MAX_ROWS)[:, columns]
    z = (rows - rows.mean(0)) / rows.std(0, correction=0)
    basis: list[Tensor] = []
    kept, rest = [], []
    for j, column in enumerate(columns):
        if len(basis) + 2 > len(rows):  # so many columns determine any other in so few rows
            kept.append(column)
            continue
        residual = z[:, j]
        for _ in range(2):  # twice, against rounding
            for direction in basis:
                residual = residual - (direction @ residual) * direction
        if _is_nothing(residual, z[:, j]):
            rest.append(column)
        else:
            basis.append(residual / residual.norm())
            kept.append(column)
    if not rest:
        return kept, {}
    design = torch.cat([x.new_ones(len(x), 1), x[:, kept[: len(basis)]]], 1)
    scale = design.abs().amax(0)
    solved = torch.linalg.lstsq(design / scale, x[:, rest]).solution / scale[:, None]
    padded = torch.cat([solved, x.new_zeros(1 + len(kept) - len(solved), len(rest))])
    return kept, dict(zip(rest, padded.unbind(1)))


def _is_nothing(residual: Tensor, column: Tensor) -> bool:
    """Whether a residual is small in most rows; a few huge values do not make it so."""
    low, high = column.quantile(column.new_tensor([0.25, 0.75])).tolist()
    rounding = _ROUNDING * torch.finfo(column.dtype).eps * column.norm().item()
    in_most = residual.abs().quantile(_MOST) <= max(_MAX_RATIO * (high - low), rounding)
    return bool(residual.norm() <= _MAX_RATIO * column.norm()) and bool(in_most or high == low)


def _few_values(column: Tensor) -> int | None:
    """The number of different values of a discrete column; None if the column is continuous."""
    count = len(column.unique())
    few = count <= max(_FEW_VALUES, _DISCRETE_SHARE * len(column))
    return count if few and len(column) >= min(_MIN_ROWS, 2 * count) else None

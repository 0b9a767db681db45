"""Columns that are exact nonlinear functions of others, such as products, ratios and norms.

Rows then lie on a surface without volume, so no density exists. Linear functions are found by
`table`; nonlinear ones are linear in other terms: products and powers in logarithms, norms in
squares, sums of products in products.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations

import torch
from torch import Tensor

from scorematching._rows import some_rows

_MAX_RATIO, _LEVEL = 1e-6, 0.9
"""A column is a function of others if nine in ten rows differ from the function by at most this
share of the column's interquartile range; few rows with huge values do not decide."""

_MAX_ROWS, _MAX_TERMS = 1000, 300
_ROWS_PER_TERM, _MORE_ROWS = 2, 10
"""Rows beyond which terms that have nothing to do with a column cannot determine it."""

Term = tuple[frozenset[int], Tensor]
"""A function of columns: which, and its values ``(N,)``."""


def related_columns(x: Tensor, discrete: Collection[int] = ()) -> list[list[int]]:
    """Sets of columns of which one is a function of the others in the set.

    Found are products, ratios and powers of any number of columns, sums of squares and their
    roots; in tables of about twenty columns or fewer, with several rows for each pair of columns,
    also logarithms, exponentials and sums of products of two columns.

    Args:
        x: points ``(N, D)``, finite, of which no column is constant or linear in the others.
        discrete: columns with few values; they are arguments of functions only.

    Example:
        >>> x = torch.rand(100, 3, generator=torch.Generator().manual_seed(0)).double()
        >>> related_columns(torch.cat([x, x[:, :1] * x[:, 1:2]], 1))
        [[0, 1, 3]]
    """
    rows = x.double().unique(dim=0)
    rows = some_rows(rows, _MAX_ROWS)
    # Columns that were computed from others are mostly behind them.
    columns = [c for c in reversed(range(x.shape[1])) if c not in discrete]
    found: dict[int, list[int]] = {}
    for terms in _lists_of_terms(rows, discrete):
        if _enough(rows, terms):
            _add_relations(found, columns, terms)
    return [sorted([column, *others]) for column, others in found.items()]


def _add_relations(found: dict[int, list[int]], columns: list[int], terms: list[Term]) -> None:
    """Add columns that others determine, with these others, until no term depends on the rest."""
    for column in columns:
        terms = [term for term in terms if not term[0] & found.keys()]
        if not _has_relation(terms):
            return
        known = any(column in (key, *others) for key, others in found.items())
        others = [] if known else _determining(column, terms)
        if others:
            found[column] = others


def _lists_of_terms(x: Tensor, discrete: Collection[int]) -> Iterator[list[Term]]:
    """Lists of terms, in which functions of one kind each are linear."""
    smooth = [c for c in range(x.shape[1]) if c not in discrete]
    logarithms = [_term(x[:, c].abs().log(), c) for c in smooth if bool((x[:, c] != 0).all())]
    yield logarithms
    yield [_term(x[:, c].square(), c) for c in smooth]
    z = (x - x.mean(0)) / x.std(0)
    single = [_term(z[:, c], c) for c in range(x.shape[1])]
    single += [*logarithms, *(_term(z[:, c].square(), c) for c in smooth)]
    if len(single) + x.shape[1] * (x.shape[1] - 1) // 2 > _MAX_TERMS:
        yield single if len(single) <= _MAX_TERMS else []
        return
    pairs = [_term(z[:, a] * z[:, b], a, b) for a, b in combinations(range(x.shape[1]), 2)]
    yield [*single, *pairs] if _enough(x, [*single, *pairs]) else single


def _term(values: Tensor, *columns: int) -> Term:
    return frozenset(columns), values / values.norm().clamp(min=torch.finfo(values.dtype).tiny)


def _enough(x: Tensor, terms: list[Term]) -> bool:
    """Whether there are terms, and so many rows that they do not determine any column."""
    return len(terms) > 1 and _ROWS_PER_TERM * len(terms) + _MORE_ROWS <= len(x)


def _has_relation(terms: list[Term]) -> bool:
    """Whether some term is a linear function of those before it, which is necessary."""
    if not terms:
        return False
    matrix = torch.stack([values for _, values in terms], 1)
    matrix = torch.cat([torch.ones_like(matrix[:, :1]), matrix], 1)
    left = torch.linalg.qr(matrix, mode="r")[1].diagonal()[1:].abs()
    centred = matrix[:, 1:] - matrix[:, 1:].mean(0)
    return bool((left <= _MAX_RATIO * centred.norm(dim=0)).any())


def _determining(column: int, terms: list[Term]) -> list[int]:
    """Columns that a column is a function of; none if there is no such function."""
    others = [term for term in terms if column not in term[0]]
    for columns, values in terms:
        if columns == {column} and _determined(values, others):
            return _needed(values, others)
    return []


def _needed(values: Tensor, terms: list[Term]) -> list[int]:
    """Columns without which terms do not determine the values."""
    needed = []
    for column in sorted(set().union(*(columns for columns, _ in terms))):
        rest = [term for term in terms if column not in term[0]]
        if _determined(values, rest):
            terms = rest
        else:
            needed.append(column)
    return needed


def _determined(values: Tensor, terms: list[Term]) -> bool:
    """Whether values ``(N,)`` are a linear function of terms."""
    if not terms:
        return False
    ones = torch.ones_like(values)
    basis = torch.linalg.qr(torch.stack([ones, *(term for _, term in terms)], 1))[0]
    residual = values - basis @ (basis.mT @ values)
    residual = residual - basis @ (basis.mT @ residual)  # twice, against rounding
    low, high = values.quantile(values.new_tensor([0.25, 0.75])).tolist()
    return bool(high > low and residual.abs().quantile(_LEVEL) <= _MAX_RATIO * (high - low))

"""Parametric families by name, fitted to all rows of a table with standard errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from scorematching.domains.base import RowsError, rows_of_table
from scorematching.inference import Summary, fit, models
from scorematching.inference.boundary import ScaleError
from scorematching.tables import Prepared
from scorematching.tables.findings import LINEAR, NOISY, NONLINEAR
from scorematching.tables.summary import listed

FAMILIES: dict[str, Callable[[int], Any]] = {
    "gaussian": models.Gaussian,
    "truncated": models.TruncatedGaussian,
    "square-root": models.PairwiseInteraction.exponential_square_root,
    "gamma": models.PairwiseInteraction.gamma,
    "ppi": models.PPI,
    "von-mises-fisher": models.VonMisesFisher,
    "bingham": models.Bingham,
}
"""Models of `scorematching.inference`, by number of columns.

Truncated, square-root and gamma models have positive columns; rows of a PPI model are shares that
sum to one, and rows of the last two lie on the unit sphere.
"""

_WANTED = {
    "truncated": "positive columns",
    "square-root": "positive columns",
    "gamma": "positive columns",
    "ppi": "columns of shares that sum to one in every row",
    "von-mises-fisher": "rows whose squares sum to one",
    "bingham": "rows whose squares sum to one",
}
"""What a family asks of a table, beside numbers."""

_COMPOSITIONS = ("ppi",)
"""Families whose columns determine each other, so that none is set aside."""

_EXPECTED = {"ppi": LINEAR, "von-mises-fisher": NONLINEAR, "bingham": NONLINEAR}
"""Findings about a table that are no news to a family."""

_IN_A_TABLE = {"use Simplex.interior(x)": "write 1e-20 in place of zeros, which does the same"}
"""Advice of domains that calls a function, and what has the same effect in a table."""

_AS_IT_IS = "fitted as it is, without noise; estimates are those of the values in the table"
"""What is done about values that a density would need noise for."""

_FORMULAS = {
    "gaussian": "linear.x - x' precision x / 2; the mean is precision^-1 linear",
    "truncated": "linear.x - x' precision x / 2, for positive x",
    "square-root": "2 linear.sqrt(x) - sqrt(x)' interaction sqrt(x)",
    "gamma": "linear.log(x) - sqrt(x)' interaction sqrt(x); linear + 1 is the shape",
    "ppi": "x' A x + beta.log(x), where A is zero in the last column",
    "von-mises-fisher": "eta.x",
    "bingham": "x' A x, where the last entry of A is zero",
}
"""Log-densities up to a constant, by the names of the parameters."""


@dataclass(frozen=True, eq=False)
class FamilyFit:
    """A fitted family.

    Attributes:
        family: its name.
        columns: that were modelled.
        summary: the table of estimates, with names of columns.
        values: the estimates, in the order of the table.
        covariance: of the estimates.
    """

    family: str
    columns: list[str]
    summary: Summary
    values: list[float]
    covariance: list[list[float]]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "family": self.family,
            "columns": self.columns,
            "names": [name for name, _ in self.summary.rows],
            "values": self.values,
            "covariance": self.covariance,
            "text": self.summary.as_text(),
            "html": self.summary.as_html(),
        }


def table_of(table: Prepared, family: str) -> Prepared:
    """A table with what a family does with columns that determine each other.

    Args:
        table: from `prepare`.
        family: a key of `FAMILIES`.
    """
    found, expected = table.summary, _EXPECTED.get(family)
    columns = found.columns
    if family in _COMPOSITIONS:
        names = {str(table.frame.columns[c]) for c in table.table.dependent}
        columns = tuple(replace(c, role="modelled") if c.name in names else c for c in columns)
    kept = (f for f in found.findings if expected is None or not f.what.startswith(expected))
    said = tuple(replace(f, done=_AS_IT_IS) if f.what.startswith(NOISY) else f for f in kept)
    return replace(table, summary=replace(found, columns=columns, findings=said))


def fit_family(table: Prepared, family: str) -> FamilyFit:
    """Fit a family to all rows by exact score matching.

    Args:
        table: from `prepare`; columns that were set aside are left out.
        family: a key of `FAMILIES`.

    Raises:
        ValueError: if the rows do not lie where the family does; the message names the row.
        SingularInformationError: if the rows do not determine the parameters.

    Example:
        >>> from scorematching.tables import prepare, read
        >>> table = prepare(read("redwine"), columns=["pH", "alcohol"])
        >>> [name for name, _ in fit_family(table, "gaussian").summary.rows][:2]
        ['linear[pH]', 'linear[alcohol]']
    """
    kept = range(table.frame.shape[1]) if family in _COMPOSITIONS else table.table.kept
    columns = [str(table.frame.columns[c]) for c in kept]
    x = torch.tensor(table.frame[columns].to_numpy())
    generator = torch.Generator().manual_seed(0)
    try:
        with rows_of_table(torch.tensor(table.rows) + 1, len(x)):  # those of the file
            result = fit(FAMILIES[family](len(columns)), x, generator=generator)
    except ScaleError as error:
        name = columns[error.column or 0]
        raise ValueError(
            f"--family {family} needs columns with values of about one, since it weighs points by "
            f"their distance from zero up to one, got {name!r} with a median of "
            f"{error.median:.3g}; divide the column by {error.median:.1g} in the table"
        ) from error
    except ValueError as error:
        wanted = _WANTED.get(family, "other numbers")
        raise ValueError(
            f"--family {family} needs {wanted}, got {listed(columns)}: {_of_table(error)}"
        ) from error
    summary = result.summary()
    rows = tuple((_with_names(name, columns), numbers) for name, numbers in summary.rows)
    covariance = torch.as_tensor(result.cov_params()).tolist()
    values = [float(result.params[name]) for name in result.names]
    facts = (("log-density, up to a constant", _FORMULAS[family]), *summary.facts)
    shown = replace(summary, rows=rows, facts=facts)
    return FamilyFit(family, columns, shown, values, covariance)


def _of_table(error: ValueError) -> str:
    """An error in words for who has a table, and no tensor of rows."""
    if not isinstance(error, RowsError):
        return str(error)
    advice = _IN_A_TABLE.get(error.advice, error.advice)
    said = RowsError(error.rows, error.count, error.wanted, advice)
    return f"{said} (rows of the table, from 1)"


def _with_names(name: str, columns: list[str]) -> str:
    """``precision[0,1]`` with the names of the columns in place of their numbers.

    Example:
        >>> _with_names("precision[0,1]", ["pH", "alcohol"])
        'precision[pH, alcohol]'
        >>> _with_names("linear[0]", ["acid, total"])
        'linear["acid, total"]'
    """
    found = re.fullmatch(r"(\w+)\[([\d,]+)\]", name)
    if found is None or any(int(i) >= len(columns) for i in found[2].split(",")):
        return name
    named = [columns[int(i)] for i in found[2].split(",")]
    quoted = [f'"{each}"' if "," in each else each for each in named]
    return f"{found[1]}[{', '.join(quoted)}]"

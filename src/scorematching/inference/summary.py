"""Tables of estimates as text, HTML and LaTeX."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

from scorematching._tables import html_table, text_table

Row = tuple[str, tuple[float, ...]]
"""A name, and estimate, standard error, z, p-value, lower and upper bound."""


@dataclass(frozen=True)
class Summary:
    """A table of estimates; prints as text, shows as HTML in notebooks.

    Attributes:
        title: first line.
        facts: pairs of a name and what is to be said of it, above the table.
        rows: of the table.
        level: of the intervals, such as 0.95.
        notes: lines below the table.

    Example:
        >>> row = ("mean", (1.0, 0.5, 2.0, 0.0455, 0.02, 1.98))
        >>> print(Summary("Fit", (("points", "16"),), (row,), 0.95))
        Fit
        points: 16
        <BLANKLINE>
              estimate  std err      z  P>|z|  [0.025  0.975]
        mean    1.0000   0.5000  2.000  0.045  0.0200  1.9800
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    level: float
    notes: tuple[str, ...] = ()

    @property
    def headings(self) -> list[str]:
        """Of the columns."""
        tail = (1 - self.level) / 2
        return ["", "estimate", "std err", "z", "P>|z|", f"[{tail:.3g}", f"{1 - tail:.3g}]"]

    @property
    def cells(self) -> list[list[str]]:
        """The table as strings."""
        return [[name, *_cells(numbers)] for name, numbers in self.rows]

    def as_text(self) -> str:
        """The summary in plain text."""
        facts = [f"{name}: {value}" for name, value in self.facts]
        table = text_table(self.headings, self.cells, align_right=True)
        notes = ["", *self.notes] if self.notes else []
        return "\n".join([self.title, *facts, "", table, *notes])

    def as_html(self) -> str:
        """The summary as an HTML fragment."""
        facts = "".join(f"<div>{html.escape(f'{a}: {b}')}</div>" for a, b in self.facts)
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        title = f"<div><b>{html.escape(self.title)}</b></div>"
        return f"{title}{facts}{html_table(self.cells, self.headings)}{notes}"

    def as_latex(self) -> str:
        """The table in LaTeX, a `tabular`."""
        lines = [_latex_row(self.headings), r"\hline", *map(_latex_row, self.cells)]
        body = "\n".join(lines)
        return f"\\begin{{tabular}}{{lrrrrrr}}\n\\hline\n{body}\n\\hline\n\\end{{tabular}}"

    def __str__(self) -> str:
        return self.as_text()

    __repr__ = __str__  # at the prompt, too

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.as_html()


def _cells(numbers: tuple[float, ...]) -> list[str]:
    """Cells with four significant digits of the standard error."""
    estimate, error, z, p, lower, upper = numbers
    size = math.floor(math.log10(error)) if error > 0 and math.isfinite(error) else 0
    form = f".{max(0, 3 - size)}f" if -5 < size < 7 else ".4e"
    values = [format(value, form) for value in (estimate, error, lower, upper)]
    return [*values[:2], f"{z:.3f}", f"{p:.3f}", *values[2:]]


LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"|": "$|$", ">": "$>$", "<": "$<$", "^": r"\^{}"}


def _latex_row(cells: list[str]) -> str:
    escaped = ("".join(LATEX.get(c, c) for c in cell) for cell in cells)
    return " & ".join(escaped) + r" \\"

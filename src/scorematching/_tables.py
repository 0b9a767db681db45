"""Tables as text and as HTML, and lines of names that are numbers."""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_YEAR = re.compile(r"\s*(1[5-9]|20)\d\d\s*$")


@dataclass(frozen=True)
class Table:
    """Rows under headings, above a conclusion; prints as text.

    Example:
        >>> print(Table(("layer", "error"), (("Linear", "1e-9"),), "all right"))
        layer   error
        Linear  1e-9
        <BLANKLINE>
        all right
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    conclusion: str

    def __str__(self) -> str:
        return f"{text_table(self.headings, self.rows)}\n\n{self.conclusion}"

    def __repr__(self) -> str:
        """Short, because the functions that return a table have printed it."""
        first = self.conclusion.partition("\n")[0]
        return f"{type(self).__name__}({len(self.rows)} rows: {first})"


WIDTH = 1_000_000
"""Characters of a line, more than any table has: columns that do not fit would be cut."""


def one_line(text: str) -> str:
    r"""A text with line breaks, tabs and other characters that are not printed written as escapes.

    Example:
        >>> one_line("acid\n(g/l)")
        'acid\\n(g/l)'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def text_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], align_right: bool = False
) -> str:
    """A table as text, columns aligned by spaces and never wrapped.

    Args:
        headings: of the columns; may have several lines.
        rows: cells, as many as headings; line breaks and tabs in them are shown as escapes.
        align_right: align all columns but the first to the right.

    Example:
        >>> print(text_table(["name", "value"], [["a", "1.50"], ["b", "12.00"]], align_right=True))
        name  value
        a      1.50
        b     12.00
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=None)
    for i, heading in enumerate(headings):
        right = align_right and i > 0
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(one_line, row))
    console = Console(
        width=WIDTH, color_system=None, markup=False, emoji=False, force_jupyter=False
    )
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def html_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """A table as HTML; special characters in cells are escaped.

    Example:
        >>> html_table([["a", "<1"]])
        '<table><tr><td>a</td><td>&lt;1</td></tr></table>'
    """
    lines = [_html_row("th", headings)] if headings else []
    return f"<table>{''.join([*lines, *(_html_row('td', row) for row in rows)])}</table>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def names_by_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line of numbers names columns: 0, 1, 2 ..., as pandas does, or years.

    Years are names if they are in order, and those of no other line are.

    Example:
        >>> names_by_numbers([["0", "1"], ["2.5", "7"]]), names_by_numbers([["2", "1"]])
        (True, False)
    """
    first = rows[0]
    if len(first) < 2:
        return False
    counted = [cell.strip() for cell in first] == [str(i) for i in range(len(first))]
    return counted or (_are_years(first) and not any(map(_are_years, rows[1:])))


def _are_years(row: Sequence[str]) -> bool:
    if not all(_YEAR.match(cell) for cell in row):
        return False
    years = [int(cell) for cell in row]
    return all(a < b for a, b in pairwise(years))

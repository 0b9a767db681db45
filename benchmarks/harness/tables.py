"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], align_right: bool = True
) -> str:
    """A table in Markdown, with a line break at the end.

    Args:
        headings: of the columns.
        rows: cells, as many as headings.
        align_right: align all columns but the first to the right.

    Example:
        >>> print(markdown_table(["x", "y"], [["a", "1"]]), end="")
        | x | y |
        | --- | --: |
        | a | 1 |
    """
    rule = ["---", *["--:" if align_right else "---"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [headings, rule, *rows])

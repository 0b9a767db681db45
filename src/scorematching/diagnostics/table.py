"""A table that prints as text."""

from __future__ import annotations

from dataclasses import dataclass


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
        """The table, aligned by spaces."""
        lines = [self.headings, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headings))]
        text = ["  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([*text, "", self.conclusion])

"""A table that prints as text."""

from dataclasses import dataclass

from scorematching._tables import text_table


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

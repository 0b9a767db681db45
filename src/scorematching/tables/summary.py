"""What was found in a table, and what was done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from scorematching._tables import one_line, text_table

_SHOWN = 5


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: in the file.
        kind: "numbers", "whole numbers", "true/false", "dates", "text" or "empty".
        missing: number of rows without a value.
        distinct: number of different values.
        role: "modelled", or why it is not.
    """

    name: str
    kind: str
    missing: int
    distinct: int
    role: str


@dataclass(frozen=True)
class Finding:
    """Something to know about a table.

    Attributes:
        what: was found.
        done: about it.
    """

    what: str
    done: str

    def __str__(self) -> str:
        return f"{self.what}: {self.done}"


@dataclass(frozen=True)
class TableSummary:
    """A table in words.

    Attributes:
        source: the file or data set.
        sha256: of its content.
        rows: in the file.
        rows_used: of them, after rows with missing values were left out.
        columns: all of them.
        findings: what has to be known, and what was done.
        notes: how the file was read.

    Example:
        >>> column = Column("height", "numbers", 0, 12, "modelled")
        >>> print(TableSummary("people.csv", "", 12, 12, (column,), (), ()))
        people.csv: 12 rows, 1 column, 1 of them modelled
    """

    source: str
    sha256: str
    rows: int
    rows_used: int
    columns: tuple[Column, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def modelled(self) -> list[str]:
        """Names of the columns that are modelled."""
        return [column.name for column in self.columns if column.role == "modelled"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TableSummary:
        """What `as_dict` returned, back."""
        return cls(
            **{key: values[key] for key in ("source", "sha256", "rows", "rows_used")},
            columns=tuple(Column(**column) for column in values["columns"]),
            findings=tuple(Finding(**finding) for finding in values["findings"]),
            notes=tuple(values["notes"]),
        )

    def table(self) -> str:
        """The columns as a text table."""
        rows = [[c.name, c.kind, str(c.missing), str(c.distinct), c.role] for c in self.columns]
        return text_table(["column", "kind", "missing", "different", "role"], rows)

    def __str__(self) -> str:
        word = "column" if len(self.columns) == 1 else "columns"
        head = f"{self.source}: {self.rows:,} rows, {len(self.columns)} {word}, "
        lines = [f"{head}{len(self.modelled)} of them modelled"]
        if self.rows_used < self.rows:
            lines.append(f"{self.rows_used:,} rows used")
        # The first note is the format; the others may be wrong guesses.
        said = [*self.notes[1:], *self.findings]
        return "\n".join([*lines, *(f"- {line}" for line in said)])

    __repr__ = __str__  # at the prompt, too


def listed(names: Any) -> str:
    """Names of columns for a sentence, the first few of many.

    Example:
        >>> listed("abcdefg")
        'a, b, c, d, e and 2 more'
    """
    words = [one_line(str(name)) for name in names]
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def alike(name: str, names: Sequence[str]) -> str | None:
    """The name that could have been meant, the same in other letters first.

    Example:
        >>> alike("ph", ["alcohol", "pH"]), alike("alcool", ["alcohol", "pH"]), alike("x", ["pH"])
        ('pH', 'alcohol', None)
    """
    same = [each for each in names if each.casefold() == name.casefold()]
    return next(iter(same or get_close_matches(name, names, n=1)), None)

"""The page about all experiments: a template with prose, filled in from committed results.

Places of the template look like ``{{ word: arguments }}``, with arguments separated by ``|``:

    table: experiment | pattern of variants | metrics      a table beside the paper's numbers
    cell: experiment | variant | metric                    a mean with its error
    note: experiment | beginning                           the rest of a note of the report
    notes: experiment | pattern                            notes that match, as a list
    differences: experiment | pattern                      rows two errors or more from the paper
    state: experiment                                      how many rows and seeds there are
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path

from reproduction import report
from reproduction.experiment import Experiment, Run
from reproduction.run import read_all

TEMPLATE = Path(__file__).with_name("page.md")

PLACE = re.compile(r"\{\{ (\w+): (.*?) \}\}")


class Page:
    """Fills in the places of a template.

    Args:
        experiments: by name.
        docs: folder with a folder for each experiment, which holds its ``results.json``.
    """

    def __init__(self, experiments: Mapping[str, Experiment], docs: Path) -> None:
        """Remember where the results are."""
        self.experiments, self.docs = experiments, docs
        self.known: dict[str, list[Run]] = {}
        self.words: dict[str, Callable[..., str]] = {
            "table": self.table,
            "cell": self.cell,
            "note": self.note,
            "notes": self.notes,
            "differences": self.differences,
            "state": self.state,
        }

    def fill(self, template: str) -> str:
        """The text, with every place filled in.

        Raises:
            ValueError: if a place cannot be filled.
        """
        return PLACE.sub(self._place, template)

    def _place(self, place: re.Match[str]) -> str:
        word, arguments = place[1], [part.strip() for part in place[2].split("|")]
        try:
            return self.words[word](*arguments)
        except (KeyError, TypeError, StopIteration) as error:
            raise ValueError(
                f"places of the page must be words such as table or cell with their arguments, got "
                f"{place[0]!r} ({type(error).__name__}: {error}); see reproduction/page.py"
            ) from error

    def runs(self, name: str) -> list[Run]:
        """The committed runs of an experiment, in order."""
        if name not in self.known:
            found = read_all(self.docs / name / "results.json")
            self.known[name] = report.in_order(self.experiments[name], found)
        return self.known[name]

    def table(self, name: str, variants: str = "*", metrics: str = "") -> str:
        """A table."""
        chosen = metrics.split() or None
        return report.table(self.experiments[name], self.runs(name), variants, chosen)

    def cell(self, name: str, variant: str, metric: str) -> str:
        """One cell; of a row that was not run, a dash."""
        return report.summary(report.by_variant(self.runs(name)).get(variant, []), metric)

    def note(self, name: str, beginning: str) -> str:
        """What a note says after its beginning and a colon, without the full stop."""
        found = next(n for n in self._all_notes(name) if n.startswith(f"{beginning}:"))
        return found[len(beginning) + 1 :].strip().removesuffix(".")

    def notes(self, name: str, pattern: str = "*") -> str:
        """Notes as a list."""
        return _as_list(n for n in self._all_notes(name) if fnmatch(n, pattern))

    def differences(self, name: str, pattern: str = "*") -> str:
        """Rows that differ from the paper, as a list."""
        found = report.differences(self.experiments[name], self.runs(name))
        return _as_list(n for n in found if fnmatch(n, pattern))

    def state(self, name: str) -> str:
        """Numbers of rows and seeds."""
        rows = report.by_variant(self.runs(name))
        seeds = sorted({len(runs) for runs in rows.values()})
        count = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
        return f"{len(rows)} rows, {count} {'seed' if count == '1' else 'seeds'} each"

    def _all_notes(self, name: str) -> list[str]:
        notes = self.experiments[name].notes
        return notes(self.runs(name)) if notes else []


def _as_list(notes: Iterable[str]) -> str:
    return "\n".join(f"- {note}" for note in notes) or "- None."


def make_page(experiments: Mapping[str, Experiment], docs: Path, template: Path = TEMPLATE) -> str:
    """The page as text.

    Args:
        experiments: by name.
        docs: folder with the results.
        template: the prose.
    """
    return Page(experiments, docs).fill(template.read_text(encoding="utf-8"))

"""What was tried, and how often the outcome was the one that is promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest


@dataclass
class Count:
    """One line of the report.

    Attributes:
        what: was done.
        promise: the outcome that counts as good.
        tried: how often.
        good: how often the outcome was good.
        failures: what happened otherwise, the first few.
    """

    what: str
    promise: str
    tried: int = 0
    good: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, good: bool, failure: str = "") -> None:
        """Count one outcome."""
        self.tried += 1
        self.good += good
        if not good and len(self.failures) < 5:
            self.failures.append(failure[:500])

    def attempt(self, act: Callable[[], object]) -> None:
        """Count an act that is good if its assertions hold."""
        try:
            act()
        except (Exception, pytest.fail.Exception) as error:
            self.add(False, f"{type(error).__name__}: {error}")
        else:
            self.add(True)


def as_rows(counts: Iterable[tuple[str, Count]]) -> list[dict[str, Any]]:
    """Counts as JSON, with the name of their part."""
    return [{"part": part, **asdict(count)} for part, count in counts]

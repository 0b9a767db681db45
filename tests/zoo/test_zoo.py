"""The zoo as a test: ``make zoo``, or ``pytest -m zoo`` where its packages are installed."""

from __future__ import annotations

import warnings

import pytest

from tests.zoo import report
from tests.zoo.__main__ import check_statements, run
from tests.zoo.catalogue import load
from tests.zoo.outcome import (
    ACCEPTED_WRONGLY,
    CRASHED,
    FOLLOWED,
    REFUSED_WRONGLY,
    SILENT,
    UNSURE,
    WRONG,
    Result,
)

pytestmark = [pytest.mark.zoo, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def results() -> list[Result]:
    with warnings.catch_warnings(action="ignore"):  # of third-party packages
        entries, _ = load()
        return run(entries)


def test_zoo_is_large_enough(results: list[Result]) -> None:
    assert len(results) >= 110


@pytest.mark.parametrize(
    "outcome", [WRONG, ACCEPTED_WRONGLY, REFUSED_WRONGLY, CRASHED, SILENT, UNSURE]
)
def test_none(results: list[Result], outcome: str) -> None:
    assert [f"{r.library}: {r.name}: {r.note}" for r in results if r.outcome == outcome] == []


def test_most_smooth_models_are_followed(results: list[Result]) -> None:
    smooth = report.smooth_models(results)
    assert sum(r.outcome == FOLLOWED for r in smooth) >= 0.8 * len(smooth)


def test_statements_of_the_entries() -> None:
    with warnings.catch_warnings(action="ignore"):
        entries, _ = load()
        assert check_statements([e for e in entries if e.verdict != "coupled"]) == []

"""The pages of the documentation are what the committed numbers give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pages import (
    coverage,
    density,
    estimators,
    graphs,
    ksd,
    local_curvature,
    objectives,
    streaming,
)

ROOT = Path(__file__).parents[2]


def numbers(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


PAGES = {
    "benchmarks": lambda: objectives.render(numbers("cpu"), numbers("gpu"), numbers("checks")),
    "estimators": lambda: estimators.render(numbers("estimators")),
    "density": lambda: "\n".join(density.sections(numbers("density"))),
    "coverage": lambda: "\n".join(coverage.sections(numbers("coverage"))),
    "local-curvature": lambda: "\n".join(local_curvature.sections(numbers("local_curvature"))),
    "goodness-of-fit": lambda: "\n".join(ksd.sections(numbers("ksd"))),
    "larger-than-memory": lambda: "\n".join(streaming.sections(numbers("streaming"))),
    "graphical-models": lambda: "\n".join(graphs.sections(numbers("graphs"))),
}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    """If not, ``python -m benchmarks.pages`` writes it again."""
    assert (ROOT / "docs" / f"{name}.md").read_text() == PAGES[name]()

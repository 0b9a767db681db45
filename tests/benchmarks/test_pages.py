"""The pages of the documentation are what the committed numbers give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pages import (
    control_variates,
    coverage,
    density,
    estimators,
    graphs,
    ksd,
    local_curvature,
    memory,
    networks,
    objectives,
    readme,
    streaming,
    train_step,
)
from benchmarks.pages.__main__ import readme_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def numbers(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


PAGES = {
    "benchmarks": lambda: objectives.render(
        numbers("cpu"),
        numbers("gpu"),
        numbers("checks"),
        [*train_step.read(RESULTS), *networks.read(RESULTS)],
    ),
    "estimators": lambda: estimators.render(numbers("estimators")),
    "density": lambda: "\n".join(density.sections(numbers("density"))),
    "coverage": lambda: "\n".join(coverage.sections(numbers("coverage"))),
    "local-curvature": lambda: "\n".join(local_curvature.sections(numbers("local_curvature"))),
    "goodness-of-fit": lambda: "\n".join(ksd.sections(numbers("ksd"))),
    "control-functionals": lambda: "\n".join(
        control_variates.sections(numbers("control_variates"))
    ),
    "larger-than-memory": lambda: "\n".join(streaming.sections(numbers("streaming"))),
    "memory": lambda: "\n".join(memory.sections(numbers("memory"))),
    "graphical-models": lambda: "\n".join(graphs.sections(numbers("graphs"))),
}


def test_readme_has_the_numbers() -> None:
    """If not, ``python -m benchmarks.pages`` writes them again."""
    text = (ROOT / "README.md").read_text()
    assert readme.fill(text, readme_tables(numbers)) == text
    assert len(text.splitlines()) < 150
    with pytest.raises(ValueError, match="no-such-table"):
        readme.fill(text, {"no-such-table": ""})


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    """If not, ``python -m benchmarks.pages`` writes it again."""
    assert (ROOT / "docs" / f"{name}.md").read_text() == PAGES[name]()

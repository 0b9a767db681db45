"""``python -m benchmarks.pages`` writes all pages once more, from the committed numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness.command import run_command
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

RUNS = Path(__file__).parents[2] / "docs" / "reproduction"
EXPERIMENTS = ("table-nice", "table-mnist")

Results = Annotated[Path, typer.Option(help="Folder of the numbers.")]
Docs = Annotated[Path, typer.Option(help="Folder of the pages; README.md is beside it.")]


def write_pages(
    results: Results = Path("benchmarks/results"), docs: Docs = Path("docs")
) -> list[Path]:
    """Write the pages of all benchmarks from their numbers."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((results / f"{name}.json").read_text())
        return found

    more = [*train_step.read(results), *networks.read(results)]
    pages = [
        objectives.write(read("cpu"), read("gpu"), read("checks"), docs, more),
        estimators.write(read("estimators"), docs),
        density.write(read("density"), docs),
        coverage.write(read("coverage"), docs),
        local_curvature.write(read("local_curvature"), docs),
        ksd.write(read("ksd"), docs),
        control_variates.write(read("control_variates"), docs),
        graphs.write(read("graphs"), docs),
        readme.write(docs.parent / "README.md", readme_tables(read)),
        streaming.write(read("streaming"), docs),
        memory.write(read("memory"), docs),
    ]
    print("written: " + ", ".join(map(str, pages)))
    return pages


def readme_tables(read: Callable[[str], dict[str, Any]]) -> dict[str, str]:
    """The tables of README.md by name, from what ``read`` returns for a name."""
    tables = (json.loads((RUNS / name / "results.json").read_text()) for name in EXPERIMENTS)
    trust = readme.trust(read("coverage"), read("ksd"), read("density"), *tables)
    return {"speed": readme.speed(read("cpu")), "trust": trust}


if __name__ == "__main__":
    run_command(write_pages, "python -m benchmarks.pages")

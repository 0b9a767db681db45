"""Run the benchmark: ``python -m benchmarks.density``.

Tables and seeds are independent and run in parallel. Each result is appended to a file of JSON
lines; the same command continues where it was interrupted.

Example:
    python -m benchmarks.density --jobs 16
    python -m benchmarks.density --smoke --docs smoke --out smoke.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.density.run import run
from benchmarks.density.summary import summarise
from benchmarks.density.tables import NINE, TABLES
from benchmarks.harness.command import Docs, Smoke, command_line, run_command
from benchmarks.harness.provenance import PACKAGES, stamp
from benchmarks.pages import density as density_page

SMOKE: dict[str, Any] = {"max_steps": 20, "num_importance": 1000}
SMOKE_TABLES, SMOKE_SEED = ["iris", "wine"], 1000
HOME = Path(__file__).parents[1]

Tables = Annotated[list[str] | None, typer.Option(help="Names of tables; all by default.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")]
First = Annotated[int, typer.Option(min=0, help="The first seed.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes, with one thread each.")]
Out = Annotated[Path | None, typer.Option(help="JSON file to write; lines go to FILE.jsonl.")]


def measure(
    tables: Tables = None,
    seeds: Seeds = 5,
    first_seed: First = 0,
    jobs: Jobs = 1,
    smoke: Smoke = False,
    out: Out = None,
    docs: Docs = None,
) -> Path:
    """Compare DensityEstimator with KDE, mixtures and flows; write numbers and docs/density.md."""
    command = command_line("python -m benchmarks.density", measure, locals())
    names = SMOKE_TABLES if smoke and not tables else tables or list(TABLES)
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        raise typer.BadParameter(f"tables must be among {', '.join(TABLES)}, got {unknown}")
    chosen = [SMOKE_SEED] if smoke else range(first_seed, first_seed + seeds)
    wanted = [(name, seed) for name in names for seed in chosen]
    out = out or HOME / "results" / "density.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    cells = run(wanted, out.with_suffix(".jsonl"), jobs, SMOKE if smoke else {})
    document = describe(command, cells)
    out.write_text(json.dumps(document, indent=1) + "\n")
    page = density_page.write(document, docs or HOME.parent / "docs")
    print(f"wrote {out.name} and {page.name}")
    return page


def describe(command: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The document: provenance, summary and cells, without the values at single rows."""
    summary = summarise(cells)
    short = [
        {**c, "methods": {name: _short(row) for name, row in c["methods"].items()}} for c in cells
    ]
    packages = (*PACKAGES, "zuko")
    nine = [name for name in NINE if any(c["table"] == name for c in cells)]
    return {**stamp(command, packages=packages), "nine": nine, "summary": summary, "cells": short}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 5) if isinstance(value, float) else value
        for name, value in row.items()
        if name != "at_points"
    }


if __name__ == "__main__":
    run_command(measure, "python -m benchmarks.density --jobs 16")

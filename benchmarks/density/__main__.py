"""Run the benchmark: ``python -m benchmarks.density``.

Tables and seeds are independent and run in parallel. Each result is appended to a file of JSON
lines; the same command continues where it was interrupted. With ``--seconds`` it ends by itself
and says what is missing. ``--page`` measures nothing and writes the page from the JSON file.

Example:
    python -m benchmarks.density --jobs 16
    python -m benchmarks.density --jobs 16 --seconds 450  # once more where cells are missing
    python -m benchmarks.density --page
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
Seconds = Annotated[float | None, typer.Option(help="Begin no table after this time.")]
Page = Annotated[bool, typer.Option("--page", help="Write the page from the JSON file only.")]
Out = Annotated[Path | None, typer.Option(help="JSON file to write; lines go to FILE.jsonl.")]


def measure(
    tables: Tables = None,
    seeds: Seeds = 5,
    first_seed: First = 0,
    jobs: Jobs = 1,
    smoke: Smoke = False,
    seconds: Seconds = None,
    page: Page = False,
    out: Out = None,
    docs: Docs = None,
) -> Path:
    """Compare DensityEstimator with KDE, mixtures and flows; write numbers and docs/density.md."""
    command = command_line("python -m benchmarks.density", measure, {**locals(), "seconds": None})
    out, docs = out or HOME / "results" / "density.json", docs or HOME.parent / "docs"
    if page:
        return density_page.write(json.loads(out.read_text()), docs)
    out.parent.mkdir(parents=True, exist_ok=True)
    wanted = _wanted(tables, seeds, first_seed, smoke)
    lines = out.with_suffix(".jsonl")
    cells = run(wanted, lines, jobs, SMOKE if smoke else {}, seconds)
    out.write_text(json.dumps(describe(command, cells), indent=1) + "\n")
    if len(cells) < len(wanted):
        print(f"{len(cells)} of {len(wanted)} cells are done; run the same command again")
        return lines
    path = density_page.write(json.loads(out.read_text()), docs)
    print(f"wrote {out.name} and {path.name}")
    return path


def _wanted(
    tables: list[str] | None, seeds: int, first_seed: int, smoke: bool
) -> list[tuple[str, int]]:
    """Tables and seeds to measure."""
    names = SMOKE_TABLES if smoke and not tables else tables or list(TABLES)
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        raise typer.BadParameter(f"tables must be among {', '.join(TABLES)}, got {unknown}")
    chosen = [SMOKE_SEED] if smoke else range(first_seed, first_seed + seeds)
    return [(name, seed) for name in names for seed in chosen]


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

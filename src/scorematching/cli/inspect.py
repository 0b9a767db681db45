"""``scorematching inspect``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from scorematching.cli.app import DataDir
from scorematching.cli.evaluate import describe
from scorematching.cli.options import say
from scorematching.runs import Run, open_run
from scorematching.tables import prepare, read

What = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or a table.")]


def inspect(what: What, data_dir: DataDir = None) -> None:
    """Show what a run holds, or what a table holds before it is fitted."""
    if Path(what).is_dir():
        run = open_run(what, family=True)
        say(*(_family(run) if run.kind == "family" else _run(run)))
    else:
        summary = prepare(read(what, data_dir), drop_missing=True).summary
        say(summary, "", summary.table())


def _family(run: Run) -> list[str]:
    command = f"command: {shlex.join(run.about['command'])}"
    return [command, "", str(run.summary), "", run.about["estimates"]["text"]]


def _run(run: Run) -> list[str]:
    about = run.about
    model = about["model"]
    parts = [f"{name} {weight:.2f}" for name, weight in model.get("weights", {}).items()]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return [
        f"command: {shlex.join(about['command'])}",
        f"written: {about['created']} with {versions}",
        f"model: {model['class']}, {about['seconds']['fit']:.0f} s to fit",
        *([f"parts: {', '.join(parts)}"] if parts else []),
        "",
        str(run.summary),
        "",
        *describe(run.held_out, warnings=about.get("warnings", [])),
    ]

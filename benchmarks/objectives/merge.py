"""One file of results from those of several models, which were timed side by side.

Example:
    python -m benchmarks.objectives --models mlp100 --output mlp100.json &
    python -m benchmarks.objectives --models flow --output flow.json & wait
    python -m benchmarks.objectives.merge mlp100.json flow.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness.command import Output, run_command
from benchmarks.harness.merging import merged
from benchmarks.objectives import targets
from benchmarks.objectives.run import RESULTS, write

Files = Annotated[list[Path], typer.Argument(help="Results of one or several models each.")]


def merge(files: Files, output: Output = None) -> dict[str, Any]:
    """Merge results of several models into one file."""
    document = merged(files)
    document["verdict"] = targets.compare(document)
    write(document, output or RESULTS / f"{document['kind']}.json")
    return document


if __name__ == "__main__":
    run_command(merge, "python -m benchmarks.objectives.merge mlp100.json flow.json")

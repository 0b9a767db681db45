"""One file of results from those of several models, which were timed side by side.

Example:
    python -m benchmarks.objectives --models mlp100 --output mlp100.json &
    python -m benchmarks.objectives --models flow --output flow.json & wait
    python -m benchmarks.objectives.merge mlp100.json flow.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness.command import Output, run_command
from benchmarks.objectives import targets
from benchmarks.objectives.run import RESULTS, write

Files = Annotated[list[Path], typer.Argument(help="Results of one or several models each.")]


def merge(files: Files, output: Output = None) -> dict[str, Any]:
    """Merge results of several models into one file."""
    documents = [json.loads(path.read_text()) for path in files]
    same = ("commit", "device", "threads", "versions", "seed")
    for path, document in zip(files, documents):
        if any(document[key] != documents[0][key] for key in same):
            raise ValueError(f"files must agree in {', '.join(same)}, got another in {path}")
    commands = "\n".join(document["command"] for document in documents)
    rows = [row for document in documents for row in document["rows"]]
    merged = {**documents[0], "command": commands, "rows": rows}
    merged["verdict"] = targets.compare(merged)
    write(merged, output or RESULTS / f"{merged['kind']}.json")
    return merged


if __name__ == "__main__":
    run_command(merge, "python -m benchmarks.objectives.merge mlp100.json flow.json")

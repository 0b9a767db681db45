"""One file of results from those of several networks, which were timed side by side.

Example:
    python -m benchmarks.networks --networks unet --output unet.json &
    python -m benchmarks.networks --networks vit --output vit.json & wait
    python -m benchmarks.networks.merge unet.json vit.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness.command import Output, run_command
from benchmarks.harness.merging import merged
from benchmarks.networks.run import RESULTS, write

Files = Annotated[list[Path], typer.Argument(help="Results of one or several networks each.")]


def merge(files: Files, output: Output = None) -> dict[str, Any]:
    """Merge results of several networks into one file."""
    document = merged(files)
    parts = [json.loads(path.read_text()) for path in files]
    document["agreement"] = [row for part in parts for row in part["agreement"]]
    document["skipped"] = {name: why for part in parts for name, why in part["skipped"].items()}
    kind = "gpu" if document["kind"] == "cuda" else "cpu"
    output = output or RESULTS / f"networks-{kind}.json"
    write(document, output)
    print(f"written to {output}")
    return document


if __name__ == "__main__":
    run_command(merge, "python -m benchmarks.networks.merge unet.json vit.json")

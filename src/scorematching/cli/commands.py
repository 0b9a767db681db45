"""The program ``scorematching`` with all its commands."""

from __future__ import annotations

from collections.abc import Callable

from scorematching.cli.app import make_app, run_app
from scorematching.cli.compare import compare
from scorematching.cli.datasets import list_datasets
from scorematching.cli.evaluate import evaluate
from scorematching.cli.fit import fit
from scorematching.cli.inspect import inspect
from scorematching.cli.report import report
from scorematching.cli.sample import sample
from scorematching.cli.score import score

COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "fit": (fit, "fit wine.csv --out runs/wine"),
    "report": (report, "report runs/wine"),
    "evaluate": (evaluate, "evaluate runs/wine new-wines.csv"),
    "score": (score, "score runs/wine new-wines.csv --out scored.csv"),
    "sample": (sample, "sample runs/wine 1000 --out samples.csv"),
    "compare": (compare, "compare runs/wine runs/wine-nice"),
    "inspect": (inspect, "inspect runs/wine"),
    "datasets": (list_datasets, "datasets --data-dir ~/data"),
}
"""Every command, with an example of its use."""

app = make_app("scorematching", "Learn a density, or its score, from samples alone.")
for _name, (_command, _example) in COMMANDS.items():
    app.command(_name, epilog=f"Example: scorematching {_example}")(_command)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; an error is one line on standard error and a non-zero exit."""
    return run_app(app, arguments)

"""The program ``scorematching`` with all its commands."""

from __future__ import annotations

from scorematching.cli.app import make_app, run_app
from scorematching.cli.datasets import list_datasets
from scorematching.cli.fit import fit

app = make_app("scorematching", "Learn a density, or its score, from samples alone.")
app.command("fit", epilog="Example: scorematching fit wine.csv --out runs/wine")(fit)
app.command("datasets", epilog="Example: scorematching datasets --data-dir ~/data")(list_datasets)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; an error is one line on standard error and a non-zero exit."""
    return run_app(app, arguments)

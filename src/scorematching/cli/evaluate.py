"""``scorematching evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from scorematching.cli.app import DataDir
from scorematching.cli.options import RunFolder, Table, say
from scorematching.cli.rows import aside_columns, far_columns, kind_of_rows, known_rows, rows_of
from scorematching.runs import HeldOut, hold_out_scores, open_run
from scorematching.tables import read

NewData = Annotated[str | None, typer.Argument(metavar="[DATA]", help="Rows that are new to it.")]


def evaluate(
    run: RunFolder, new: NewData = None, data: Table = None, data_dir: DataDir = None
) -> None:
    """Log-likelihood and loss beside the baselines, at held-out rows or at DATA.

    Without DATA the rows are those that fit held out, and the numbers those of the report.
    """
    found = open_run(run)
    if new is not None and data is not None:
        raise ValueError(
            f"--data must be left out beside DATA, got {data} and {new}; it is the place of the "
            "table of the fit"
        )
    if new is None:
        table = found.prepared(found.read_table(data, data_dir))
        rows, called = found.parts(table).test, "held-out rows"
    else:
        loaded = read(new, data_dir)
        rows = rows_of(found, loaded, "evaluate")
        say(*known_rows(loaded, found), *far_columns(found, rows), *aside_columns(found, rows))
        called = f"{kind_of_rows(rows)} of {new}"
        rows = found.noisy(rows)
    scores = hold_out_scores(found.model, found.baselines, found.space, rows)
    say(*describe(scores, called))


def describe(
    scores: HeldOut, rows: str = "held-out rows", warnings: Sequence[str] = ()
) -> list[str]:
    """Numbers of rows that were not fitted to as lines, and warnings of the fit."""
    head = f"{scores.rows} {rows}, mean and standard error per row"
    head += " (gain: of this model over the other)"
    said = ["", *(f"warning: {line}" for line in warnings)] if warnings else []
    return [head, scores.table(), *scores.notes, "", *scores.verdicts(), *said]

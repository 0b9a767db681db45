"""``scorematching compare``."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from scorematching.cli.app import DataDir
from scorematching.cli.options import RunFolder, say
from scorematching.cli.rows import (
    aside_columns,
    columns_of,
    completed,
    far_columns,
    kind_of_rows,
    known_rows,
    rows_of,
    without_copies,
)
from scorematching.evaluation import Estimate, paired_difference
from scorematching.runs import Run, RunError, open_run
from scorematching.runs.held_out import clear_sign, log_densities, loss_rows, model_losses, short
from scorematching.tables import Loaded, read

Other = Annotated[str, typer.Argument(metavar="RUN_B", help="Another run.")]
Data = Annotated[
    str | None, typer.Option("--data", help="Rows to compare at; default: those both held out.")
]

_NEW_ROWS = "give rows that are new to both runs with --data"
_ADVICE = (f"put it there again, or {_NEW_ROWS}", f"restore it, or {_NEW_ROWS}")
"""What to do without the table of the fits; here --data is not its place."""


def compare(run_a: RunFolder, run_b: Other, data: Data = None, data_dir: DataDir = None) -> None:
    """Compare two runs at the same rows: the mean difference with its standard error.

    Both must model the same columns. Without --data the rows are those of the common table that
    both have held out.
    """
    a, b = open_run(run_a), open_run(run_b)
    _check_columns(a, b)
    rows = _common_rows(a, b, data_dir) if data is None else _given_rows(a, b, data, data_dir)
    called = (
        "rows that neither was fitted to" if data is None else f"{kind_of_rows(rows)} of {data}"
    )
    rows = a.noisy(rows)
    say(f"A: {a.folder}", f"B: {b.folder}", f"{len(rows)} {called}")
    if a.about["width"] != b.about["width"]:
        say("A and B differ in the noise of rounded columns; rows have that of A")
    if a.kind == b.kind == "density":
        found = [log_densities(run.model, completed(run, rows)) for run in (a, b)]
        say(_verdict("log-likelihood A - B", paired_difference(*found), larger_is_better=True))
    x = loss_rows(a.space.rows(rows))
    losses = [model_losses(run.model, a.space.like(run.space), x) for run in (a, b)]
    say(_verdict("score-matching loss A - B", paired_difference(*losses), larger_is_better=False))


def _verdict(name: str, difference: Estimate, larger_is_better: bool) -> str:
    winner = "A" if (difference.mean > 0) == larger_is_better else "B"
    words = f"{winner} is better" if clear_sign(difference) else "no clear difference"
    return f"{name}: {short(difference)} per row, {words}"


def _check_columns(a: Run, b: Run) -> None:
    if a.summary.modelled != b.summary.modelled:
        raise ValueError(
            "both runs must model the same columns, got "
            f"{', '.join(a.summary.modelled)} and {', '.join(b.summary.modelled)}; fit both with "
            "the same --columns"
        )


def _given_rows(a: Run, b: Run, data: str, data_dir: str | None) -> Any:
    loaded = read(data, data_dir)
    rows = rows_of(a, loaded, "compare")
    say(*known_rows(loaded, a, b), *_remarks(a, b, loaded))
    return rows


def _remarks(a: Run, b: Run, loaded: Loaded) -> list[str]:
    """Lines about new rows that are unlike those of a fit; what holds for one run names it."""
    of_a, of_b = (_unlike(run, columns_of(run, loaded)) for run in (a, b))
    only = [
        f"{run}: {line}"
        for run, lines, others in (("A", of_a, of_b), ("B", of_b, of_a))
        for line in lines
        if line not in others
    ]
    return [*(line for line in of_a if line in of_b), *only]


def _unlike(run: Run, numbers: Any) -> list[str]:
    """Lines about one run; its columns that were set aside may have missing values."""
    complete = numbers[np.isfinite(numbers.to_numpy()).all(1)]
    return [*far_columns(run, complete), *aside_columns(run, complete)] if len(complete) else []


def _common_rows(a: Run, b: Run, data_dir: str | None) -> Any:
    """Rows that both have held out."""
    if a.summary.sha256 != b.summary.sha256:
        raise RunError(
            f"{a.folder} and {b.folder} were fitted to different tables; give rows that are new "
            "to both with --data"
        )
    table = a.prepared(a.read_table(None, data_dir, _ADVICE))
    both = np.isin(table.rows, np.intersect1d(a.rows, b.rows))
    rows = without_copies(a, table.frame[both])
    if len(rows) < 2:
        raise RunError(
            f"{a.folder} and {b.folder} have held out {len(rows)} rows in common, and two or more "
            "are needed; fit both with the same --seed, or give rows with --data"
        )
    return rows

"""``scorematching sample``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scorematching._extras import import_extra
from scorematching.cli.files import check_output, write_frame
from scorematching.cli.options import RunFolder, Seed, say
from scorematching.runs import Run, open_run
from scorematching.runs.drawing import draw
from scorematching.tables.summary import listed

Method = Literal["auto", "exact", "resampled", "hmc", "langevin"]

Count = Annotated[int, typer.Argument(metavar="N", min=1, help="How many rows.")]
Out = Annotated[Path | None, typer.Option(help="csv, tsv or parquet; default: RUN/samples.csv.")]
MethodOption = Annotated[Method, typer.Option(help="auto is exact, or langevin for a score.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file.")]


def sample(
    run: RunFolder,
    n: Count,
    out: Out = None,
    method: MethodOption = "auto",
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Draw N new rows from a fitted model.

    exact: independent. resampled: from the base, by weight. hmc: Markov chains, with R-hat and
    effective sample size. langevin: without correction, for a model of the score alone.
    """
    found = open_run(run)
    path = found.folder / "samples.csv" if out is None else out.expanduser()
    check_output(path, overwrite)
    drawn = draw(found.model, found.space, n, method, seed)
    write_frame(_restored(found, drawn.x), path)
    say(f"{drawn.method}: {'; '.join(drawn.notes)}", *_noisy(found), f"wrote {n} rows to {path}")


def _noisy(run: Run) -> list[str]:
    """A line about columns that were rounded in the table and are not in samples."""
    names = run.noisy_columns
    said = f"with noise over the rounding, as in the fit: {listed(names)}; round them if need be"
    return [said] if names else []


def _restored(run: Run, x: Any) -> Any:
    """All columns of the model, constant and dependent ones included, as a data frame."""
    frame_of = import_extra("pandas", "tables").DataFrame
    table = getattr(run.model, "table_", None)
    if table is None:
        return frame_of(x.numpy(), columns=list(run.space.columns))
    return frame_of(table.restore(x).numpy(), columns=run.columns)

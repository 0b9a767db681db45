"""``scorematching score``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from scorematching._extras import import_extra
from scorematching.cli.app import DataDir
from scorematching.cli.files import check_output, write_frame
from scorematching.cli.options import RunFolder, say
from scorematching.cli.rows import EMPTY, columns_of, far_columns, incomplete
from scorematching.runs import Run, open_run
from scorematching.runs.unusual import RowScores, score_rows
from scorematching.tables import Loaded, read
from scorematching.tables.read import labels_of

NewData = Annotated[str, typer.Argument(metavar="DATA", help="Rows to score.")]
Out = Annotated[Path, typer.Option(help="csv, tsv or parquet file to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file.")]


def score(
    run: RunFolder,
    data: NewData,
    out: Out,
    overwrite: Overwrite = False,
    data_dir: DataDir = None,
) -> None:
    """Add log-density, its error, gradient and a rank of unusual rows to a table.

    New columns: log_density, log_density_error, grad_NAME for each column, unusual_rank (1 is the
    most unusual row) and unusual_column. Rows with missing values get empty fields.
    """
    found = open_run(run)
    out, source = out.expanduser(), Path(data).expanduser()
    check_output(out, overwrite)
    loaded = read(data, data_dir)
    if out.exists() and source.exists() and out.samefile(source):
        raise ValueError(f"--out must be another file than DATA, got {out}; name a new one")
    numbers = columns_of(found, loaded, EMPTY)
    good = np.isfinite(numbers.to_numpy()).all(1)
    if not good.any():
        raise ValueError(f"{data} must have a complete row of numbers, got {incomplete(numbers)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = score_rows(found.model, found.space, numbers[good])
    write_frame(_joined(found, _labelled(loaded), good, scores), out)
    say(*sorted({str(w.message) for w in caught if issubclass(w.category, UserWarning)}))
    say(*far_columns(found, numbers[good], EMPTY), *_shared(found, numbers[good]))
    if not good.all():
        say(f"left empty: {incomplete(numbers)}")
    say(*_unusual(scores, good), f"wrote {len(loaded.frame)} rows to {out}")


def _shared(run: Run, numbers: Any) -> list[str]:
    """A line for each value, such as a code for missing values, that rows of the fit share, too."""
    return [
        f"{count} rows have {name} {value:g}, which several rows of the fit share: their ranks "
        "depend on the width of the noise on it; leave the field empty if it means missing"
        for name, values in run.shared_values.items()
        for value in values
        if (count := int((numbers[name] == value).sum()))
    ]


def _labelled(loaded: Loaded) -> Any:
    """The table, with names of rows as they are in the file."""
    frame, labels = loaded.frame.copy(), labels_of(loaded)
    for place, name in enumerate(labels):
        values = labels[name].to_numpy(object)
        if name in frame:
            frame[name] = values
        else:
            frame.insert(place, str(name), values)
    return frame


def _joined(run: Run, frame: Any, good: Any, scores: RowScores) -> Any:
    """The table with the new columns; those of the same names are refused."""
    frame_of = import_extra("pandas", "tables").DataFrame
    columns: dict[str, Any] = {
        "log_density": scores.log_density,
        "log_density_error": scores.error,
        **{f"grad_{name}": scores.gradient[:, i] for i, name in enumerate(run.columns)},
        "unusual_rank": scores.rank,
        "unusual_column": scores.column,
    }
    if run.kind == "score":
        del columns["log_density"], columns["log_density_error"]
    taken = [name for name in columns if name in frame]
    if taken:
        raise ValueError(
            f"DATA must not have columns with the names of new ones, got {', '.join(taken[:3])}; "
            "score the table without them"
        )
    added = frame_of(columns, index=frame.index[good]).reindex(frame.index)
    added["unusual_rank"] = added["unusual_rank"].astype("Int64")
    return frame.join(added)


def _unusual(scores: RowScores, good: Any) -> list[str]:
    places = np.flatnonzero(good)[np.argsort(scores.rank)[:5]] + 1
    return [f"most unusual rows, counted from 1: {', '.join(map(str, places))}"]
